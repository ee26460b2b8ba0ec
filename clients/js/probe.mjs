/**
 * What each program here does with its client: list, call, be asked; then print one line of JSON with what worked.
 * The same as `python/probe.py`, with which it shares the environment variable `PATIENCE` and the words it expects.
 */

import { setTimeout as sleep } from "node:timers/promises";

export const PATIENCE = Number(process.env.PATIENCE ?? "0");
/** How long one thing may take, in seconds, besides the person's time. */
const LIMIT = 25;

/** What the model answers to everything. */
export const SUMMARY = "Much ado about nothing.";
/** What the person answers, by the field. */
const ANSWERS = { name: "octocat", confirm: true };

/** What has to be in each result, however the client returns it. */
const EXPECTED = {
  tools: ["add", "greet", "summarize", "wait"],
  prompts: ["review"],
  resources: ["today"],
  call: ["20304"],
  elicit: ["Greeted octocat"],
  sample: [SUMMARY],
};

export const CALLS = {
  call: ["add", { a: 20300, b: 4 }],
  elicit: ["greet", { city: "Oslo" }],
  sample: ["summarize", { text: "a play" }],
};

const outcomes = {};

const delays = [PATIENCE];

/** Fill in a form; the first one as slowly as the person is. */
export async function fillIn(schema) {
  await sleep((delays.shift() ?? 0) * 1000);
  return Object.fromEntries(Object.keys(schema.properties).map((field) => [field, ANSWERS[field]]));
}

/**
 * Try what a client can do. `call` calls a tool by its name; `tools`, `prompts` and `resources` list them, where the
 * client can; `elicits` and `samples` say whether it has handlers for forms and for sampling.
 */
export async function probe({ call, tools, prompts, resources, elicits = false, samples = false }) {
  if (PATIENCE) {
    const [name, given] = elicits ? CALLS.elicit : ["wait", { seconds: PATIENCE }];
    outcomes.patience = await attempt(() => call(name, given), [elicits ? "Greeted" : "waited"]);
    return;
  }
  for (const [what, found] of Object.entries({ tools, prompts, resources })) {
    if (found) outcomes[what] = await attempt(found, EXPECTED[what]);
  }
  for (const [what, able] of Object.entries({ call: true, elicit: elicits, sample: samples })) {
    const outcome = await attempt(() => call(...CALLS[what]), EXPECTED[what]);
    outcomes[what] = able ? outcome : { ok: null, said: outcome.said };
  }
}

/** Try one thing; give whether all that was expected is in the result, how long it took, and what was said otherwise. */
async function attempt(found, expected) {
  const began = performance.now();
  const late = new AbortController();
  let ok = false;
  let said;
  try {
    const limit = (LIMIT + PATIENCE) * 1000;
    const tooLate = sleep(limit, undefined, { signal: late.signal }).then(() => Promise.reject(new Error("no end")));
    said = JSON.stringify(await Promise.race([found(), tooLate])) ?? "";
    ok = expected.every((each) => said.includes(each));
  } catch (error) {
    said = describe(error);
  }
  late.abort();
  return { ok, seconds: Math.round((performance.now() - began) / 100) / 10, said: ok ? "" : said.slice(0, 600) };
}

function describe(error) {
  return String(error?.message || error);
}

/** Run a program with the address of the server, and print what became of it. */
export async function run(main) {
  process.on("unhandledRejection", () => {}); // of what came too late
  try {
    await main(process.argv[2]);
  } catch (error) {
    outcomes.error = describe(error).slice(0, 600);
  }
  console.log(`\n${JSON.stringify(outcomes)}`);
  process.exit(0);
}
