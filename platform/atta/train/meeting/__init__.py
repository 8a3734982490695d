"""How trainers meet that may be started again one by one: through notes in a store that outlives each of them."""

from atta.train.meeting.meeting import Meeting, meet_once, meeting_here

__all__ = ["Meeting", "meet_once", "meeting_here"]
