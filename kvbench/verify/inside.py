"""The two places where verification looks behind the manager's door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvbench.cache.tables import BlockTables
    from kvbench.cache.types import CacheManager


def tables_of(manager: CacheManager) -> BlockTables:
    """The block tables, of the paged manager's books or of a baseline itself."""
    inside: Any = manager
    tables: BlockTables = getattr(inside, "books", inside).tables
    return tables


def pool_of(manager: CacheManager) -> Any:
    """The block pool; None for a baseline that has none."""
    books = getattr(manager, "books", None)
    return None if books is None else books.pool
