-- Drives one scenario (see scenarios.py) from wrk: wrk ... -s wrk.lua URL -- FIRST RETRY TEXT [HEADER VALUE]...
--
-- wrk calls request() and response() for all connections of a thread, without saying which one is at hand. Nothing here
-- needs to know: a state that arrives is queued, and whichever connection sends next answers the oldest one. A round of a
-- flow may come over any connection; being free of that is what sealed state is for.

local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

local headers, first, retry, text
local n, queue, head, tail = 0, {}, 1, 0

complete, wrong = 0, 0 -- global, because thread:get() in done() sees nothing else

function init(args)
  first, retry, text = args[1], args[2], args[3]
  headers = {}
  for i = 4, #args, 2 do
    headers[args[i]] = args[i + 1]
  end
end

local function fill(template, values)
  return (template:gsub("@(%a+)@", values))
end

function request()
  if head <= tail then
    local pending = queue[head]
    queue[head], head = nil, head + 1
    return wrk.format("POST", nil, headers, fill(retry, pending))
  end
  n = n + 1
  return wrk.format("POST", nil, headers, fill(first, { n = n }))
end

local function refuse(status, body)
  wrong = wrong + 1
  if wrong == 1 then
    io.stderr:write("unexpected response: ", status, " ", body, "\n")
  end
end

function response(status, _, body)
  local id, round = body:match('"id"%s*:%s*(%d+)(%d)')
  local kind = body:match('"resultType"%s*:%s*"([%a_]+)"')
  if status ~= 200 or not id or not kind or body:find('"isError"%s*:%s*true') then
    return refuse(status, body)
  end
  if kind == "input_required" and round == "0" and retry ~= "" then
    local state = body:match('"requestState"%s*:%s*"([%w%-%._~+/=:]+)"')
    if not state or not body:find('"github_login"', 1, true) then
      return refuse(status, body)
    end
    tail = tail + 1
    queue[tail] = { n = id, state = state }
  elseif kind == "complete" and (round == "1") == (retry ~= "") and body:find('"' .. fill(text, { n = id }) .. '"', 1, true) then
    complete = complete + 1
  else
    refuse(status, body)
  end
end

function done(summary, latency)
  local answers, errors = 0, 0
  for _, thread in ipairs(threads) do
    answers = answers + thread:get("complete")
    errors = errors + thread:get("wrong")
  end
  for _, kind in ipairs({ "connect", "read", "write", "timeout" }) do
    errors = errors + summary.errors[kind]
  end
  io.write(string.format(
    'RESULT {"complete": %d, "errors": %d, "seconds": %.6f, "p50_ms": %.3f, "p99_ms": %.3f}\n',
    answers, errors, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3
  ))
end
