// Draws what a tool asks in a page that has a drawing of its own: in a frame, by the page of questions.
(() => {
  const ASK = "mrtr-server/ask";
  // Here, since not every host reads resources for pages.
  const PAGE = "__QUESTION__";
  const asks = ({ _meta, content = [] }) => _meta?.[ASK] || content[0]?.text?.startsWith("mrtr-ask: ");

  mrtr.settle = (result, request) => (asks(result) ? draw(result, request) : result);

  const draw = (result, request) => {
    const frame = document.createElement("iframe");
    frame.title = "Question";
    frame.style.cssText = "display: block; width: 100%; height: 0; border: 0";
    frame.srcdoc = PAGE;
    return new Promise((resolve) => {
      const post = (message) => frame.contentWindow?.postMessage({ jsonrpc: "2.0", ...message }, "*");
      const end = (outcome) => {
        // The person sees for a moment what came of it, and then what the page makes of it.
        setTimeout(() => frame.remove(), 2000);
        resolve(outcome);
      };
      const own = {
        "ui/initialize": () => ({
          protocolVersion: "2026-01-26",
          hostInfo: { name: "page", version: "1" },
          hostCapabilities: mrtr.host,
          hostContext: mrtr.context,
        }),
        "ui/notifications/initialized": () => post({ method: "ui/notifications/tool-result", params: result }),
        "ui/notifications/size-changed": ({ height }) => (frame.style.height = `${height}px`),
      };
      const hear = async ({ source, data }) => {
        if (source !== frame.contentWindow || data?.jsonrpc !== "2.0" || !data.method) return;
        const { id, method, params } = data;
        try {
          const done = await (own[method] ? own[method](params) : request(method, params, 0));
          const outcome = done?.structuredContent?.outcome;
          // The frame tells the model nothing of a call that this page has made.
          if (outcome) removeEventListener("message", hear);
          if (id !== undefined) post({ id, result: done });
          if (outcome) end(outcome);
        } catch ({ message, code = -32603, result: failed }) {
          // What a tool says of its failure is a result for the page.
          if (id !== undefined) post(failed ? { id, result: failed } : { id, error: { code, message } });
        }
      };
      addEventListener("message", hear);
      document.body.prepend(frame);
    });
  };
})();
