"""A judge behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from ranker.core.chat import Answer, ChatClient
from train.labels.gates import Pair, Question

MAX_TOKENS = 64  # {"answer": false} takes about eight; spread over lines, as some models do, 20 and more


class JudgeClient(ChatClient):
    """Puts questions to one endpoint; see `ChatClient`."""

    async def ask(self, question: Question, pair: Pair) -> Answer[int]:
        """Put a question, its answer bound to the question's schema.

        Returns
        -------
        Answer
            Its value is None where no try gave one; that is no answer, not a no.

        Raises
        ------
        ResourceError
            If the endpoint refuses all requests (address, key, model), or seems to be gone.
        """
        schema = {"name": question.name, "strict": True, "schema": question.schema}
        return await self.complete(
            question.messages(pair),
            question.read,
            max_tokens=MAX_TOKENS,
            response_format={"type": "json_schema", "json_schema": schema},
        )
