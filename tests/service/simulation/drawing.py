"""Who lives in a life, and what they ask for."""

from __future__ import annotations

import random
from functools import cache

from ..byte_tokenizer import make_tokenizer
from .asked import Asked, ask
from .clients import Caller, Client, Impostor, Leaver, Returner, Sleeper, Talker, World
from .engine import POISON

tokenizer = cache(make_tokenizer)


def draw_clients(world: World, *, has_poison: bool) -> list[Client]:
    """One to three, and those who would have another's stream. One request may be poison."""
    chance = world.chance
    kinds = chance.choices(
        (Caller, Leaver, Sleeper, Returner, Talker), (6, 3, 1, 6, 6), k=chance.randint(1, 3)
    )
    clients: list[Client] = []
    for kind in kinds:
        client = kind(world, _requests(chance, kind))
        clients.append(client)
        if isinstance(client, Returner):
            client.stream_id = f"s{len(clients)}"
            if chance.random() < 0.2:
                impostor = Impostor(world, _requests(chance, Impostor))
                impostor.stream_id, impostor.victim = client.stream_id, client
                clients.append(impostor)
    if has_poison:
        asked = chance.choice([each for client in clients for each in client.asked])
        asked.prompt = [*asked.prompt, POISON]
    return clients


def _requests(chance: random.Random, kind: type[Client]) -> list[Asked]:
    if kind is not Talker:
        timeout_s = None
        if kind is Caller and chance.random() < 0.15:
            timeout_s = 0.5 * chance.random()
        return [ask(chance, tokenizer(), timeout_s=timeout_s)]
    asked = [ask(chance, tokenizer()) for _ in range(chance.randint(1, 3))]
    for each in asked:
        if chance.random() < 0.6:
            each.credit = chance.choice([0, 1, 3]) if each.n == 1 else each.n
        if each.credit == 0 and chance.random() < 0.3:
            each.starves, each.timeout_s = True, 0.6
        else:
            each.extends = chance.random() < 0.2
    return asked
