// Attaches images to a message: they can be chosen or pasted, have a preview, and can be removed before sending.
// Previews are drawn on canvases, so that the content security policy need not allow further image sources.
"use strict";

(() => {
  const EDGE = 64;
  const number = new Intl.NumberFormat("en");

  const attach = (form) => {
    const input = form.querySelector("input[type=file]");
    const list = form.querySelector("[data-attached]");
    const problem = form.querySelector("[data-image-problem]");
    const text = form.querySelector("textarea");
    const limits = form.dataset;
    const types = limits.imageTypes.split(" ");
    let files = [];

    const refusal = (file) => {
      const size = files.reduce((sum, other) => sum + other.size, file.size);
      if (!types.includes(file.type)) return `${file.name} is not a PNG, JPEG, GIF or WebP file.`;
      if (file.size > Number(limits.maxImageBytes)) return `${file.name} has ${number.format(file.size)} bytes; at most ${number.format(limits.maxImageBytes)} are accepted.`;
      if (files.length >= Number(limits.maxImages)) return `A message has at most ${limits.maxImages} images.`;
      if (size > Number(limits.maxImagesBytes)) return `The images have ${number.format(size)} bytes together; at most ${number.format(limits.maxImagesBytes)} are accepted.`;
      return "";
    };

    const draw = async (canvas, file) => {
      try {
        const image = await createImageBitmap(file);
        const scale = Math.min(1, EDGE / Math.max(image.width, image.height));
        canvas.width = Math.max(1, Math.round(image.width * scale));
        canvas.height = Math.max(1, Math.round(image.height * scale));
        canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
        image.close();
        canvas.dataset.drawn = "";
      } catch {
        show(`${file.name} cannot be read as an image.`);
      }
    };

    const show = (sentence) => {
      problem.textContent = sentence;
      problem.hidden = !sentence;
    };

    // The form sends the files of its file input.
    const store = () => {
      const transfer = new DataTransfer();
      for (const file of files) transfer.items.add(file);
      input.files = transfer.files;
      text.required = files.length === 0;
    };

    const item = (file) => {
      const element = document.createElement("li");
      const canvas = document.createElement("canvas");
      canvas.width = canvas.height = 1;
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", file.name);
      const remove = document.createElement("button");
      remove.type = "button";
      remove.className = "quiet small";
      remove.textContent = "Remove";
      remove.setAttribute("aria-label", `Remove ${file.name}`);
      remove.addEventListener("click", () => {
        files = files.filter((other) => other !== file);
        element.remove();
        show("");
        store();
        text.focus();
      });
      element.append(canvas, remove);
      draw(canvas, file);
      return element;
    };

    const add = (added) => {
      show("");
      for (const file of added) {
        const sentence = refusal(file);
        if (sentence) {
          show(sentence);
          continue;
        }
        files.push(file);
        list.append(item(file));
      }
      store();
    };

    input.addEventListener("change", () => add([...input.files]));
    text.addEventListener("paste", (event) => {
      const pasted = [...event.clipboardData.files];
      if (!pasted.length) return;
      event.preventDefault();
      add(pasted);
    });
    form.addEventListener("reset", () => {
      files = [];
      list.replaceChildren();
      show("");
      // The browser empties the file input after this event.
      setTimeout(store);
    });
    // A page that the browser restores may already have files in its file input.
    add([...input.files]);
  };

  document.addEventListener("DOMContentLoaded", () => {
    const form = document.getElementById("compose");
    if (form) attach(form);
  });
})();
