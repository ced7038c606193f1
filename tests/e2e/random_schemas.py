"""Random JSON schemas from a seed. Everything in them is bounded, so that even a model with random
weights comes to an end."""

import random

WORDS = ["a", "name", "b c", "\xe9", 'q"q', "x\\y", "n_1", "long-key"]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "ipv6"]
PATTERNS = ["^[a-f]{1,6}$", "^(yes|no)$", "^[A-Z][0-9]{2,3}$", "^x?y*z$", "^\\d{3}-\\d{4}$"]


def _bounded(rng, low, high):
    first = rng.randint(low, high)
    return first, first + rng.randint(0, high - low)


def _string(rng):
    kind = rng.randrange(5)
    if kind == 0:
        low, high = _bounded(rng, 0, 6)
        return {"type": "string", "minLength": low, "maxLength": high}
    if kind == 1:
        return {"type": "string", "pattern": rng.choice(PATTERNS)}
    if kind == 2:
        return {"type": "string", "format": rng.choice(FORMATS)}
    if kind == 3:
        return {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 5}
    return {"type": "string", "maxLength": rng.randint(0, 150)}


def _number(rng):
    kind = rng.randrange(5)
    if kind == 0:
        return {"type": rng.choice(["number", "integer"])}
    if kind == 1:
        low, high = _bounded(rng, -50, 200)
        return {"type": "integer", "minimum": low, "maximum": high}
    if kind == 2:
        return {"type": "integer", "multipleOf": rng.randint(2, 12), "minimum": 0}
    low = round(rng.uniform(-5, 5), rng.randint(0, 3))
    schema = {"type": "number", "maximum": round(low + rng.uniform(1, 300), 2)}
    schema["minimum" if kind == 3 else "exclusiveMinimum"] = low
    return schema


def _array(rng, depth):
    if rng.random() < 0.25:
        items = [schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    low, high = _bounded(rng, 0, 2)
    return {"type": "array", "items": schema(rng, depth + 1), "minItems": low, "maxItems": high}


def _object(rng, depth):
    names = rng.sample(WORDS, rng.randint(0, 4))
    out = {"type": "object", "properties": {name: schema(rng, depth + 1) for name in names}}
    out["required"] = [name for name in names if rng.random() < 0.6]
    if rng.random() < 0.7:
        out["additionalProperties"] = False
    return out


def _combination(rng, depth):
    kind = rng.randrange(3)
    if kind == 0:
        return {"anyOf": [schema(rng, depth + 1) for _ in range(rng.randint(1, 3))]}
    if kind == 1:
        return {"oneOf": [_string(rng), _number(rng), {"type": "null"}]}
    low, high = _bounded(rng, 0, 9)
    return {"allOf": [{"type": "integer", "minimum": low}, {"maximum": high + 9}]}


def schema(rng, depth=0):
    if depth == 0:
        return _object(rng, depth)
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind < 2:
        return _string(rng)
    if kind < 4:
        return _number(rng)
    if kind == 4:
        return {"type": rng.choice(["boolean", "null", ["boolean", "null"]])}
    if kind == 5:
        return {"enum": rng.sample([1, 2.5, "x", "y z", None, True, [1], {"k": "v"}], 3)}
    if kind == 6:
        return _array(rng, depth)
    if kind == 7:
        return _object(rng, depth)
    return _combination(rng, depth)


def generate(seed):
    return schema(random.Random(seed))
