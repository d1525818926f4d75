// Browsers start no worker from file://, and the search runs in one. There, a hidden frame runs the worker's script instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const loads = (address) => new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        script.src = address;
        script.onload = resolve;
        script.onerror = reject;
        inside.document.body.append(script);
      });
      inside.document.open();
      inside.document.write("<body>");
      inside.document.close();
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...addresses) => addresses.reduce((before, each) => before.then(() => loads(each)), Promise.resolve());
      this.inside = inside;
      this.ready = loads(url);
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
