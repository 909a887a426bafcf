"""Alembic's entry: runs the migrations on the connection that bot/store/migrate.py hands over (or on `-x url=…`).

Configures nothing else: no logging set-up, no output.
"""

from __future__ import annotations

import asyncio

from alembic import context
from sqlalchemy.engine import Connection

from bot.store.tables import metadata


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        # The caller holds one transaction around everything: a half-done upgrade does not exist.
        transactional_ddl=True,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


async def _by_hand(url: str) -> None:
    from bot.store.migrate import migration_engine

    engine = migration_engine(url)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(_run)
    finally:
        await engine.dispose()


given = context.config.attributes.get("connection")
if given is not None:
    _run(given)
else:
    chosen = context.get_x_argument(as_dictionary=True).get("url")
    if not chosen:
        raise SystemExit("say which database: alembic -x url=sqlite:////path/to/hearth.db …")
    asyncio.run(_by_hand(chosen))
