"""The object that `checks.RECORD` describes, for clients whose environments have pydantic."""

from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int
    city: str
