import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of the real data sets; a test that needs it is skipped where there is none."""
    folder = os.environ.get("SBERT_SEARCH_DATA")
    if not folder:
        pytest.skip("SBERT_SEARCH_DATA is not set")
    return Path(folder)
