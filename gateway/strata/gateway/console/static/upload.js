// Uploads files with their progress: each is the body of a separate request.
"use strict";

(() => {
  const token = () => JSON.parse(document.body.getAttribute("hx-headers"))["x-csrf-token"];

  const send = (url, file, progress) => new Promise((resolve) => {
    const request = new XMLHttpRequest();
    request.open("PUT", url);
    request.setRequestHeader("x-csrf-token", token());
    request.setRequestHeader("hx-request", "true");
    request.setRequestHeader("content-type", "application/octet-stream");
    request.upload.onprogress = (event) => {
      if (event.lengthComputable) progress.value = (100 * event.loaded) / event.total;
    };
    request.onloadend = () => resolve(request);
    request.send(file);
  });

  const show = (html, place) => {
    const template = document.createElement("template");
    template.innerHTML = html;
    for (const element of [...template.content.children]) {
      document.getElementById(element.id)?.remove();
      place.append(element);
      htmx.process(element);
    }
  };

  const upload = async (area, input) => {
    const progress = area.querySelector("progress");
    const status = area.querySelector("[role=status]");
    const replace = area.querySelector("[data-replace]").checked ? "&replace=yes" : "";
    progress.hidden = false;
    for (const file of input.files) {
      status.textContent = `Uploading ${file.name}`;
      progress.value = 0;
      const url = `${area.dataset.upload}?name=${encodeURIComponent(file.name)}${replace}`;
      const request = await send(url, file, progress);
      if (request.status === 200) {
        show(request.responseText, document.getElementById(area.dataset.list));
        status.textContent = `${file.name} is stored`;
      } else {
        document.getElementById("notices").replaceChildren();
        show(request.responseText || "<p class='problem'>The upload failed.</p>", document.getElementById("notices"));
        status.textContent = `${file.name} was not stored`;
      }
    }
    progress.hidden = true;
    input.value = "";
  };

  document.addEventListener("change", (event) => {
    const area = event.target.closest("[data-upload]");
    if (area && event.target.type === "file" && event.target.files.length) upload(area, event.target);
  });
})();
