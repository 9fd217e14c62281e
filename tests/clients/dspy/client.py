import os
from typing import Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise its list of prices is downloaded
os.environ["DSPY_CACHEDIR"] = os.path.join(os.environ["HOME"], "cache")

import dspy
from checks import KEY, MODEL, SUM, SUM_ANSWER, URL, check, main, same
from dspy import lm15

access = lm15.AccessPolicy(provider="unmask", env_keys=("OPENAI_API_KEY",), base_url=URL)
provider = lm15.ProviderDefinition.chat(access, compat=lm15.OpenAIChatCompat.preset("vllm"))
lm15.register_provider(provider, supports=lm15.ModelSupport(response_schema=True))
lm = dspy.LM(f"unmask/{MODEL}", api_base=URL, api_key=KEY, cache=False, num_retries=0, max_tokens=200)
like_openai = dspy.LM(f"openai/{MODEL}", api_base=URL, api_key=KEY, cache=False, num_retries=0, max_tokens=200)


class Measure(dspy.Signature):
    """Tell the unit, and whether it is a long way."""

    sentence: str = dspy.InputField()
    unit: Literal["km", "miles"] = dspy.OutputField()
    long: bool = dspy.OutputField()


@check("basic")
def call() -> None:
    same(lm(SUM), [SUM_ANSWER])
    same(like_openai(SUM), [SUM_ANSWER])


@check("structured")
def predict() -> None:
    """Checks only the form of the object, because the demo is not trained on dspy's prompts."""
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        found = dspy.Predict(Measure)(sentence="Rome is 9 km away.")
    assert found.unit in ("km", "miles"), found
    assert isinstance(found.long, bool), found


@check("streaming")
async def stream() -> None:
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        program = dspy.streamify(dspy.Predict(Measure))
        *parts, last = [part async for part in program(sentence="Rome is 9 km away.")]
    assert isinstance(last, dspy.Prediction), parts
    assert last.unit in ("km", "miles"), last


main()
