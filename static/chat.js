// @ts-check
/** The conversation with a model that has a chat template, as an alternative to the plain text. */

import { lm } from "./lm.js";
import { Conversation } from "./conversation.js";
import { copyText } from "./exporting.js";
import { Meter, outcome, say, show } from "./figures.js";
import { read, write } from "./remember.js";
import { patiently } from "./writing.js";

/** @typedef {import("./conversation.js").Turn} Turn */

const VIEW_KEY = "tabgpt.view";
const NEAR_END = 64;
const MARGIN = 24;
/** What models that think aloud put around that. */
const THOUGHT = /^\s*<think>([\s\S]*?)(?:<\/think>\s*|$)/;

/** @param {string} id */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** @param {string} id */
const area = (id) => /** @type {HTMLTextAreaElement} */ (document.getElementById(id));

export class Chat {
  #talk = new Conversation();
  #meter = new Meter();
  #box = element("chat");
  #log = element("turns");
  #message = area("message");
  /** An answer under way. @type {{text: string, body: HTMLElement}|null} */
  #live = null;
  #frame = 0;
  #editing = -1;
  /** What the user chose to see; null: whatever suits the model. */
  #wanted = read(VIEW_KEY);

  /**
   * @param {import("./session.js").Session} session @param {import("./settings.js").Settings} settings
   * @param {() => void} changed
   */
  constructor(session, settings, changed) {
    this.session = session;
    this.settings = settings;
    this.changed = changed;
    const system = area("system");
    system.value = this.#talk.system;
    system.addEventListener("input", () => {
      this.#talk.system = system.value;
      this.#talk.save();
    });
    element("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.#message.addEventListener("keydown", (event) => {
      if (!sends(event)) return;
      event.preventDefault();
      this.send();
    });
    this.#message.addEventListener("input", () => this.update());
    element("new-chat").addEventListener("click", () => {
      this.#talk.cut(0);
      this.#draw();
      this.#message.focus();
    });
    for (const [id, view] of [["view-text", "text"], ["view-chat", "chat"]]) {
      element(id).addEventListener("click", () => {
        this.#wanted = view;
        write(VIEW_KEY, view);
        changed();
        if (view === "chat") this.#message.focus();
      });
    }
    lm.on("token", ({ text }) => {
      if (!this.#live) return;
      this.#live.text += text;
      this.#meter.count();
      this.#frame ||= requestAnimationFrame(() => this.#flush());
    });
    this.#draw();
  }

  get isOpen() {
    return Boolean(this.session.loaded?.chat) && this.#wanted !== "text";
  }

  /** Bring the view in line with what is going on. */
  update() {
    const { loaded, generating, failed } = this.session;
    const open = this.isOpen;
    const opened = open && document.body.dataset.view !== "chat";
    document.body.dataset.view = open ? "chat" : "text";
    if (opened) this.#toEnd();
    element("views").hidden = !loaded?.chat;
    element("view-text").setAttribute("aria-pressed", String(!open));
    element("view-chat").setAttribute("aria-pressed", String(open));
    const button = (/** @type {string} */ id) => /** @type {HTMLButtonElement} */ (element(id));
    button("send").hidden = generating;
    button("send").disabled = failed || this.#message.value.trim() === "";
    button("chat-stop").hidden = !generating;
    button("new-chat").disabled = generating || this.#talk.turns.length === 0;
    for (const tool of this.#log.querySelectorAll("button")) tool.disabled = generating;
  }

  send = () => {
    const text = this.#message.value.trim();
    if (!text || this.session.generating) return;
    this.#message.value = "";
    this.#talk.say("user", text);
    return this.#answer();
  };

  /** Answer the last question once more. */
  again = () => {
    const { turns } = this.#talk;
    if (this.session.generating || !turns.length) return;
    if (turns[turns.length - 1].role === "assistant") this.#talk.cut(turns.length - 1);
    return this.#answer();
  };

  async #answer() {
    const { session, settings } = this;
    session.generating = true;
    session.givenUp = false;
    session.notices.clear();
    show();
    this.#editing = -1;
    this.#draw();
    const { body } = this.#add({ role: "assistant", content: "" }, this.#talk.turns.length);
    this.#live = { text: "", body };
    body.classList.add("live");
    this.#toEnd();
    this.changed();
    try {
      await session.ensure();
      if (session.givenUp) return;
      this.#meter.start();
      const result = await patiently(() => lm.complete({ ...settings.generateOptions(), messages: this.#talk.messages }));
      this.#live.text = result.text;
      this.#meter.stop(result, (seed) => {
        settings.seed = seed;
      });
      say(outcome(result, session.loaded?.context ?? 0), "ready");
    } catch (error) {
      session.report(error, this.again);
    } finally {
      cancelAnimationFrame(this.#frame);
      this.#frame = 0;
      const text = this.#live.text;
      this.#live = null;
      if (text) this.#talk.say("assistant", text);
      session.generating = false;
      this.#draw();
      this.changed();
      this.#message.focus();
    }
  }

  #flush() {
    this.#frame = 0;
    if (!this.#live) return;
    const follow = this.#atEnd();
    fill(this.#live.body, this.#live.text);
    if (follow) this.#toEnd();
  }

  /** Pixels of the conversation's end below the upper edge of the foot. */
  get #overhang() {
    const foot = document.querySelector(".foot")?.getBoundingClientRect().top ?? innerHeight;
    return this.#log.getBoundingClientRect().bottom + MARGIN - foot;
  }

  #atEnd() {
    return this.#overhang < NEAR_END;
  }

  /** Wide, the view scrolls; narrow, the whole page does. */
  #toEnd() {
    const over = this.isOpen ? this.#overhang : 0;
    if (over <= 0) return;
    if (getComputedStyle(this.#box).overflowY === "auto") this.#box.scrollTop += over;
    else scrollBy(0, over);
  }

  #draw() {
    this.#log.replaceChildren();
    for (const [place, turn] of this.#talk.turns.entries()) this.#add(turn, place);
    element("chat-empty").hidden = this.#talk.turns.length > 0;
    this.#toEnd();
  }

  /** @param {Turn} turn @param {number} place */
  #add(turn, place) {
    const [item, name, body, tools] = ["article", "h2", "div", "div"].map((tag) => document.createElement(tag));
    item.className = `turn ${turn.role}`;
    name.className = "turn-name";
    name.textContent = turn.role === "user" ? "You" : "Model";
    body.className = "turn-text";
    tools.className = "turn-tools";
    if (place === this.#editing) {
      item.append(name, this.#editor(turn, place));
    } else {
      fill(body, turn.content);
      if (place < this.#talk.turns.length) tools.append(...this.#tools(turn, place));
      item.append(name, body, tools);
    }
    element("chat-empty").hidden = true;
    this.#log.append(item);
    return { body };
  }

  /** @param {Turn} turn @param {number} place */
  #tools(turn, place) {
    const edit = quiet("Edit", () => {
      this.#editing = place;
      this.#draw();
      this.changed();
      this.#log.querySelector("textarea")?.focus();
    });
    const copy = quiet("Copy", () => copyText(turn.content));
    if (turn.role === "user") return [edit, copy];
    const again = quiet("Regenerate", () => {
      this.#talk.cut(place);
      this.#answer();
    });
    return [again, edit, copy];
  }

  /** @param {Turn} turn @param {number} place */
  #editor(turn, place) {
    const form = document.createElement("form");
    form.className = "turn-editor";
    const text = document.createElement("textarea");
    text.value = turn.content;
    text.rows = Math.min(turn.content.split("\n").length + 1, 12);
    text.setAttribute("aria-label", turn.role === "user" ? "Your message" : "The model's message");
    const save = document.createElement("button");
    save.type = "submit";
    save.className = "button small";
    save.textContent = turn.role === "user" ? "Send again" : "Save";
    const done = () => {
      this.#editing = -1;
      this.#draw();
      this.changed();
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const content = text.value.trim();
      if (!content) return;
      this.#talk.replace(place, content);
      if (turn.role !== "user") return done();
      // What was answered was an answer to something else.
      this.#talk.cut(place + 1);
      this.#answer();
    });
    text.addEventListener("keydown", (event) => {
      if (!sends(event)) return;
      event.preventDefault();
      form.requestSubmit();
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        done();
      }
    });
    const row = document.createElement("div");
    row.className = "turn-tools";
    row.append(save, quiet("Cancel", done));
    const later = this.#talk.turns.length - place - 1;
    if (turn.role === "user" && later > 0) {
      const warning = document.createElement("span");
      warning.className = "hint";
      warning.id = "turns-lost";
      warning.textContent = later === 1 ? "The turn after it goes" : `The ${later} turns after it go`;
      save.setAttribute("aria-describedby", warning.id);
      row.append(warning);
    }
    form.append(text, row);
    return form;
  }
}

/** Enter does; with Shift it is a new line. @param {KeyboardEvent} event */
const sends = ({ key, shiftKey, ctrlKey, metaKey, isComposing }) =>
  key === "Enter" && !shiftKey && !ctrlKey && !metaKey && !isComposing;

/** @param {string} label @param {() => void} act */
function quiet(label, act) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet";
  button.textContent = label;
  button.addEventListener("click", act);
  return button;
}

/** Text as text; what a model thought first is folded away. @param {HTMLElement} body @param {string} text */
function fill(body, text) {
  const thought = THOUGHT.exec(text);
  if (!thought) {
    body.textContent = text;
    return;
  }
  const open = body.querySelector("details")?.open ?? false;
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = "Thought";
  details.className = "thought";
  details.open = open;
  details.append(summary, thought[1].trim());
  body.replaceChildren(details, text.slice(thought[0].length));
}
