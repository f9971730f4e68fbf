// Follows runs: applies what the server sends for each event of a run to the page.
"use strict";

(() => {
  const nearEnd = () => window.innerHeight + window.scrollY > document.body.scrollHeight - 160;
  const toEnd = () => window.scrollTo({ top: document.body.scrollHeight });

  const operations = {
    put({ parent, id, html }) {
      const template = document.createElement("template");
      template.innerHTML = html;
      const present = document.getElementById(id);
      const holder = document.getElementById(parent);
      const added = [...template.content.children];
      if (!added.length) return;
      if (present) present.replaceWith(...added);
      else if (holder) holder.append(...added);
      else return;
      added.forEach((element) => htmx.process(element));
      added.forEach((element) => document.dispatchEvent(new CustomEvent("console:added", { detail: element })));
    },
    text({ id, text }) {
      document.getElementById(id)?.append(text);
    },
    remove({ id }) {
      document.getElementById(id)?.remove();
    },
    end(_, run) {
      disconnect(run);
      run.setAttribute("aria-busy", "false");
      connectNext();
    },
  };

  // Browsers open six connections to a server, for all of its pages together, and each stream keeps one. A page that is
  // not visible has no streams; a run is followed from its beginning again.
  const MOST_STREAMS = 3;
  const streams = new Map();
  let waiting = [];

  const disconnect = (run) => {
    streams.get(run)?.close();
    streams.delete(run);
  };

  const connect = (run) => {
    const source = new EventSource(run.dataset.events);
    streams.set(run, source);
    source.onmessage = (event) => {
      run.dataset.begun = "yes";
      const follows = nearEnd();
      for (const operation of JSON.parse(event.data)) operations[operation.op]?.(operation, run);
      if (follows) toEnd();
    };
    source.onerror = () => {
      // Otherwise the browser reconnects automatically.
      if (source.readyState !== EventSource.CLOSED) return;
      operations.end({}, run);
      document.getElementById("notices")?.replaceChildren(
        Object.assign(document.createElement("p"), {
          className: "problem",
          textContent: "The connection to this run was lost. Load the page again to see how it ended.",
        }));
    };
  };

  const connectNext = () => {
    while (!document.hidden && waiting.length && streams.size < MOST_STREAMS) connect(waiting.shift());
  };

  // Connects a run at once, if necessary in place of another one that has not begun.
  const connectNow = (run) => {
    waiting = waiting.filter((other) => other !== run);
    const idle = [...streams.keys()].filter((other) => !other.dataset.begun).pop();
    if (document.hidden || (streams.size >= MOST_STREAMS && !idle)) {
      waiting.push(run);
      return;
    }
    if (streams.size >= MOST_STREAMS) {
      disconnect(idle);
      waiting.push(idle);
    }
    connect(run);
  };

  const follow = (run) => {
    if (run.dataset.followed) return;
    run.dataset.followed = "yes";
    connectNow(run);
  };

  const pause = () => {
    waiting = [...streams.keys(), ...waiting];
    waiting.forEach(disconnect);
  };
  document.addEventListener("visibilitychange", () => (document.hidden ? pause() : connectNext()));
  window.addEventListener("pagehide", pause);

  const followIn = (root) => root.querySelectorAll?.("[data-events]").forEach(follow);
  document.addEventListener("DOMContentLoaded", () => {
    followIn(document);
    if (document.getElementById("log")?.childElementCount) toEnd();
  });
  document.addEventListener("htmx:load", (event) => {
    if (event.detail.elt.matches?.("[data-events]")) follow(event.detail.elt);
    followIn(event.detail.elt);
  });

  document.addEventListener("htmx:afterRequest", (event) => {
    const form = event.detail.elt;
    // A run that was cancelled before its turn.
    const run = form.closest("[data-events][aria-busy=true]");
    if (run && !streams.has(run)) connectNow(run);
    if (form.id !== "compose") return;
    const typed = form.text.value;
    if (!event.detail.successful) {
      form.text.value = [sentText, typed].filter(Boolean).join("\n");
      return;
    }
    form.reset();
    form.text.value = typed;
    toEnd();
  });

  // What is typed while a message is sent belongs to the next one.
  let sentText = "";
  document.addEventListener("htmx:beforeSend", (event) => {
    const form = event.detail.elt;
    if (form.id !== "compose") return;
    sentText = form.text.value;
    form.text.value = "";
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    if (!("sendOnEnter" in event.target.dataset)) return;
    event.preventDefault();
    event.target.form.requestSubmit();
  });
})();
