"""What each system reads and publishes in an epoch. One file each, without I/O; everything else they share.

| system | rows of others are | gradients of rows are | published |
|---|---|---|---|
| ``exchange`` | of this epoch | of this epoch | every epoch |
| ``sancus`` | within a bound | of this epoch | when the bound asks for it |
| ``pipegcn`` | of the epoch before | of the epoch before | every epoch |
| ``digest`` | of the last synchronisation | cut, or of their last synchronisation | every N epochs |
| ``sat`` | predicted from the last synchronisations | as digest | as digest |
"""
