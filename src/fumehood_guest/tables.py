"""Tables."""
from typing import Any
def register_tables(formatter: Any) -> None:
    pass
