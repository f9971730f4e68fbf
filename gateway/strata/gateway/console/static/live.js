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
    end({ id }, source) {
      source.close();
      document.getElementById(id)?.setAttribute("aria-busy", "false");
    },
  };

  const follow = (run) => {
    if (run.dataset.followed) return;
    run.dataset.followed = "yes";
    const source = new EventSource(run.dataset.events);
    source.onmessage = (event) => {
      const follows = nearEnd();
      for (const operation of JSON.parse(event.data)) operations[operation.op]?.(operation, source);
      if (follows) toEnd();
    };
    source.onerror = () => {
      // Otherwise the browser reconnects automatically.
      if (source.readyState !== EventSource.CLOSED) return;
      run.setAttribute("aria-busy", "false");
      document.getElementById("notices")?.replaceChildren(
        Object.assign(document.createElement("p"), {
          className: "problem",
          textContent: "The connection to this run was lost. Load the page again to see how it ended.",
        }));
    };
    window.addEventListener("pagehide", () => source.close());
  };

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
    if (form.id !== "compose" || !event.detail.successful) return;
    form.reset();
    toEnd();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    if (!("sendOnEnter" in event.target.dataset)) return;
    event.preventDefault();
    event.target.form.requestSubmit();
  });
})();
