// Browsers start no workers for pages that are opened as files. There, run the script of the search in a hidden frame
// with the interface of a worker instead.
"use strict";
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget { // the search looks for the first name
    constructor(url) {
      super();
      this.onmessage = null;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      this.frame = frame;
      this.ready = new Promise((resolve) => {
        inside.importScripts = (...names) => names.reduce((before, name) => before.then(() => new Promise((done, fail) => {
          const script = inside.document.createElement("script");
          script.onload = done;
          script.onerror = fail;
          script.src = new URL(name, url).href;
          inside.document.head.append(script);
        })), Promise.resolve());
        inside.postMessage = (data) => {
          const event = new MessageEvent("message", { data });
          if (this.onmessage) this.onmessage(event);
          this.dispatchEvent(event);
        };
        const script = inside.document.createElement("script");
        script.onload = resolve;
        script.src = String(url);
        inside.document.head.append(script);
      });
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
