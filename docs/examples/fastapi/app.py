"""An API in FastAPI that answers only the gateway."""

import os

from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel

app = FastAPI()


class Text(BaseModel):
    text: str


def check(key: str) -> None:
    if key != os.environ["API_KEY"]:
        raise HTTPException(401, "the key is missing")


@app.get("/primes/{most}")
def primes(most: int, x_api_key: str = Header("")):
    check(x_api_key)
    return [n for n in range(2, most + 1) if all(n % d for d in range(2, int(n**0.5) + 1))]


@app.post("/count")
def count(body: Text, x_api_key: str = Header("")):
    check(x_api_key)
    return {"letters": sum(letter.isalpha() for letter in body.text)}
