"""Generated from protos/atta/v1 by tools/generate_protos.sh; do not edit."""
