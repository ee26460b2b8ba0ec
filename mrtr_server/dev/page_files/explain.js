// What the server did, in words for people who see it for the first time.

/** Explain the reply to a request. `was` says what was special about sending it. */
export function explain(reply, exchange, { ended = false } = {}) {
  const steps = stepWords(exchange.report);
  if (exchange.problem) return exchange.problem;
  if (reply.kind === "error") return errorWords(exchange.error);
  if (reply.kind === "input") {
    const asked = Object.keys(reply.requests).length;
    if (!asked) return `The server handed the call over without a question: it drains or is busy. The page continues at once, at any replica.${steps}`;
    return `The server asks, and keeps nothing of this call: all that it remembers is in requestState, which only the server can read.${steps}`;
  }
  if (reply.kind === "task") return `From here on the call is a task: it continues on the server, while its client may be away.${steps}`;
  if (reply.result.isError) return `The tool ended with an error, which the model can read.${steps}`;
  return `${ended ? "The task has ended." : "This is the result."}${steps}`;
}

function stepWords(report) {
  if (!report?.ran) return "";
  const words = [];
  if (report.replayed.length) words.push(` Replayed from the journal, so that they ran no second time: ${report.replayed.join(", ")}.`);
  if (report.ran.length) words.push(` Steps that ran in this round: ${report.ran.join(", ")}.`);
  return words.join("");
}

function errorWords(error) {
  const missing = error.data?.requiredCapabilities;
  if (missing) return `The server needs a capability that this client did not declare: ${Object.keys(missing).join(", ")}. See "Client settings".`;
  return `The server replied with an error: ${error.message}`;
}

/** Explain what became of a request that was sent a second time. */
export function explainAgain(first, second, { hadState, redeemedOnce, asOther, firstReply, secondReply }) {
  if (second.problem) return second.problem;
  if (asOther && secondReply.kind === "error") {
    return `The server refused it. The state is sealed for the user it was made for: to ${asOther} it is as good as none, and the reply tells nothing about why.`;
  }
  if (asOther) return `The server took it from ${asOther}: the call named no user, so its state is valid for anyone who has it.`;
  if (!hadState) return `This was a first request. The server keeps nothing of those, so the function began again.${againWords(second)}`;
  const same = JSON.stringify(firstReply) === JSON.stringify(secondReply);
  if (redeemedOnce === null) {
    const reply = same ? "The reply is the same." : "The reply is another one.";
    return `${reply} After a confirmation, and with single_use=True, the server returns the outcome that it has recorded. Otherwise the function runs again, and recorded steps are replayed.`;
  }
  if (redeemedOnce) {
    return same
      ? "This state is redeemed once, by all replicas that share a store. One of the two requests ran; the other ran nothing, and returned the outcome that was recorded."
      : "This state is redeemed once, by all replicas that share a store. One of the two requests ran; the other ran nothing, and its reply differs, since the answers or the user did.";
  }
  return `The function ran again from the top, against the journal in the state: recorded steps were replayed.${againWords(second)}${
    second.report?.ran?.length ? " Where that must not happen, give the tool single_use=True, or ask for a confirmation first." : ""}`;
}

function againWords(exchange) {
  const { ran = [], replayed = [] } = exchange.report ?? {};
  const words = [];
  if (ran.length) words.push(` Steps that ran again: ${ran.join(", ")}.`);
  if (replayed.length) words.push(` Replayed: ${replayed.join(", ")}.`);
  return words.join("");
}
