// Shows the stored events of a run one after another, with the pauses that were between them. Short pauses
// are longer than they were, so that each event of a fast run is seen.
"use strict";

(() => {
  const LONGEST_PAUSE_MS = 1500;
  const SHORTEST_PAUSE_MS = 200;
  const SHORT_PAUSES_MS = 4000; // of all events together

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("replay");
    const events = [...document.querySelectorAll("#events > li")];
    if (!button || events.length < 2) return;
    const shortest = Math.min(SHORTEST_PAUSE_MS, SHORT_PAUSES_MS / events.length);
    let timer = 0;

    const show = (index) => {
      const event = events[index];
      event.classList.remove("later");
      event.scrollIntoView({ block: "nearest" });
      const next = events[index + 1];
      if (!next) return finish();
      const pause = Number(next.dataset.elapsed) - Number(event.dataset.elapsed);
      timer = setTimeout(show, Math.min(Math.max(pause, shortest), LONGEST_PAUSE_MS), index + 1);
    };
    const finish = () => {
      clearTimeout(timer);
      timer = 0;
      for (const event of events) event.classList.remove("later");
      button.textContent = "Replay";
    };
    const start = () => {
      for (const event of events) event.classList.add("later");
      button.textContent = "Show all";
      show(0);
    };
    button.hidden = false;
    button.addEventListener("click", () => (timer ? finish() : start()));
  });
})();
