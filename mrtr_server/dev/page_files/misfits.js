// What the server finds wrong with fields, as it says it to models and people.

/** Return the problems that a result of a tool names, as {path, message}; none if it is no error about arguments. */
export function ofResult(result) {
  const text = result?.isError ? result.content?.[0]?.text : undefined;
  const [head, ...lines] = typeof text === "string" ? text.split("\n") : [""];
  return head.endsWith("do not fit:") ? lines.map((line) => problem(line.replace(/^- /, ""))).filter(Boolean) : [];
}

/** Return the problems that a question names which is asked again: they stand before its message. */
export function ofMessage(message) {
  const [reason, ...asked] = String(message ?? "").split(" — ");
  return asked.length ? reason.split("; ").map(problem).filter(Boolean) : [];
}

function problem(text) {
  const found = /^([^\s:]+): (.+)$/.exec(text);
  return found && { path: found[1].split("."), message: found[2] };
}
