// @ts-check
/** What keys do, and the list of it. */

/**
 * @typedef {object} Shortcut
 * @property {string} text what it does
 * @property {string} keys as they are shown: Ctrl stands for the command key on a Mac
 * @property {(event: KeyboardEvent) => boolean} fits
 * @property {() => void} act
 */

const mac = /Mac|iPhone|iPad/.test(navigator.userAgent);

/** @param {KeyboardEvent} event */
const command = (event) => event.ctrlKey || event.metaKey;
/** @param {string} code */
const alt = (code) => (/** @type {KeyboardEvent} */ event) => event.altKey && !command(event) && event.code === code;
/** @param {string} name @param {boolean} shift */
const ctrl = (name, shift) => (/** @type {KeyboardEvent} */ event) =>
  command(event) && !event.altKey && event.key === name && event.shiftKey === shift;

/** Keys as this machine calls them. @param {string} keys */
export const named = (keys) => (mac ? keys.replace("Ctrl+", "⌘").replace("Alt+", "⌥").replace("Shift+", "⇧") : keys);

/**
 * @param {Record<"generate"|"regenerate"|"stop"|"previous"|"next"|"compare"|"tokens"|"link"|"alternatives"|"list", () => void>} acts
 * @returns {Shortcut[]}
 */
export const shortcuts = (acts) => [
  { text: "Let the model write at the caret", keys: "Ctrl+Enter", fits: ctrl("Enter", false), act: acts.generate },
  { text: "Write the last continuation anew", keys: "Ctrl+Shift+Enter", fits: ctrl("Enter", true), act: acts.regenerate },
  { text: "Stop", keys: "Esc", fits: ({ key }) => key === "Escape", act: acts.stop },
  { text: "Undo, also what the model wrote", keys: "Ctrl+Z", fits: () => false, act: () => {} },
  { text: "Redo", keys: "Ctrl+Shift+Z", fits: () => false, act: () => {} },
  { text: "Previous continuation", keys: "Alt+,", fits: alt("Comma"), act: acts.previous },
  { text: "Next continuation", keys: "Alt+.", fits: alt("Period"), act: acts.next },
  { text: "Continuations side by side", keys: "Alt+C", fits: alt("KeyC"), act: acts.compare },
  { text: "Show each token", keys: "Alt+T", fits: alt("KeyT"), act: acts.tokens },
  { text: "From a token to its alternatives", keys: "Alt+↓", fits: alt("ArrowDown"), act: acts.alternatives },
  { text: "Copy a link that writes the same again", keys: "Alt+L", fits: alt("KeyL"), act: acts.link },
  {
    text: "This list",
    keys: "?",
    fits: (event) => event.key === "F1" || (event.key === "?" && !(event.target instanceof Element && event.target.matches("input, textarea, select"))),
    act: acts.list,
  },
];

/** Listen for them, and list them. @param {Shortcut[]} all */
export function listen(all) {
  addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    const found = all.find(({ fits }) => fits(event));
    if (!found) return;
    if (event.key !== "Escape") event.preventDefault();
    found.act();
  });
  document.getElementById("shortcut-list")?.append(
    ...all.flatMap(({ text, keys }) => {
      const [term, said] = ["dt", "dd"].map((tag) => document.createElement(tag));
      const key = document.createElement("kbd");
      key.textContent = named(keys);
      term.append(key);
      said.textContent = text;
      return [term, said];
    }),
  );
}

/** A dialog that its button, Escape and a click beside it close. @param {HTMLDialogElement} dialog */
export function closable(dialog) {
  dialog.querySelector("[data-close]")?.addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
}
