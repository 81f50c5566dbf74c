// Questions in a dialog: it takes the focus, Escape closes it, and the focus goes back to where it was.

import { h } from "../dom.js";

/** Ask; what `read` gives of the form once `act` was pressed, null where it was closed. `read` may give a text that says
 * what is wrong, which is shown and keeps the dialog open, and may take its time. */
export function ask(title, children, act, read = () => true, danger = false) {
  const before = document.activeElement;
  return new Promise((resolve) => {
    let answer = null, busy = false;
    const wrong = h("p", { class: "bad", role: "alert" });
    const form = h("form", { onsubmit: async (event) => {
      event.preventDefault();
      if (busy) return;
      busy = true;
      const found = await read(form);
      busy = false;
      if (typeof found === "string") { wrong.textContent = found; return; }
      answer = found;
      dialog.close();
    } }, h("h2", {}, title), children, wrong, h("p", { class: "tools" },
      h("button", { type: "submit", class: danger ? "danger" : null }, act),
      h("button", { type: "button", autofocus: danger, onclick: () => dialog.close() }, "Cancel")));
    const dialog = h("dialog", { "aria-label": title }, form);
    dialog.addEventListener("close", () => { dialog.remove(); if (before?.isConnected) before.focus(); resolve(answer); });
    document.body.append(dialog);
    dialog.showModal();
  });
}
