"""Graph folders of these tests need not outlive a power cut."""

from tests.unit.partition.conftest import _no_forcing_to_disk  # noqa: F401
