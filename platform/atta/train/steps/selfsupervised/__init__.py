"""Trainers of embeddings: edges, walks or the features themselves say what is to be learnt, not a table of targets.

``embedding`` is what they share, ``links`` predicts edges, ``unlabelled`` learns without labels. ``ranking`` and
``probing`` say how good embeddings are.
"""
