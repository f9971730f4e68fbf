// Behaviour of pages in addition to htmx. There are no inline scripts, because the content security policy forbids them.
"use strict";

(() => {
  // A form with data-confirm asks before it is sent.
  document.addEventListener("submit", (event) => {
    const question = event.target.dataset.confirm;
    if (question && !window.confirm(question)) event.preventDefault();
  }, true);

  // A form with data-send-at-once needs no click; its button is for browsers without scripts.
  document.addEventListener("DOMContentLoaded", () => {
    document.querySelector("form[data-send-at-once]")?.requestSubmit();
  });

  // A part that was unfolded before htmx was ready has not loaded its content.
  document.addEventListener("htmx:load", (event) => {
    for (const summary of event.detail.elt.querySelectorAll("details[open] > summary[hx-get]")) {
      htmx.trigger(summary, "click");
    }
  });

  // Scrolls to the notice after an error, so that the person sees it.
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id === "notices") {
      event.detail.target.scrollIntoView({ block: "nearest" });
    }
  });
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.detail.elt.closest("[data-keep-notices]")) return;
    const notices = document.getElementById("notices");
    if (notices) notices.replaceChildren();
  });

  // Times are written in UTC by the server, and shown in the time zone of the person.
  const format = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
  const localTimes = (root) => {
    for (const element of root.querySelectorAll("time[datetime]:not([data-local])")) {
      const moment = new Date(element.dateTime);
      if (Number.isNaN(moment.getTime())) continue;
      element.title = element.textContent + " UTC";
      element.textContent = format.format(moment);
      element.dataset.local = "";
    }
  };
  document.addEventListener("DOMContentLoaded", () => localTimes(document));
  document.addEventListener("console:added", (event) => localTimes(event.detail));
  document.addEventListener("htmx:load", (event) => localTimes(event.detail.elt.parentElement || event.detail.elt));
})();
