// @ts-check
/** The conversation with a model that has a chat template, as an alternative to the plain text. */

import { lm } from "./lm.js";
import { Conversation } from "./conversation.js";
import { copyText } from "./exporting.js";
import { Meter, outcome, say, show } from "./figures.js";
import { read, write } from "./remember.js";
import { announce, patiently } from "./writing.js";

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
  /** The turn that is being edited. @type {number|null} */
  #editing = null;
  /** What others were told, and of which conversation. @type {{of: string, ids: number[], text: string, prompt_length: number}|null} */
  #heard = null;
  #told = "";
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
      this.#talk.clear();
      this.#editing = null;
      this.#draw();
      this.changed();
      this.#message.focus();
    });
    element("old-chat").addEventListener("click", () => {
      this.#talk.bringBack();
      this.#draw();
      this.changed();
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
    if (open) this.#tell();
    else this.#told = "";
    element("views").hidden = !loaded?.chat;
    element("view-text").setAttribute("aria-pressed", String(!open));
    element("view-chat").setAttribute("aria-pressed", String(open));
    const button = (/** @type {string} */ id) => /** @type {HTMLButtonElement} */ (element(id));
    button("send").hidden = generating;
    button("send").disabled = failed || this.#editing !== null || this.#message.value.trim() === "";
    button("chat-stop").hidden = !generating;
    button("new-chat").disabled = generating || this.#talk.isEmpty;
    for (const tool of this.#log.querySelectorAll("button")) {
      // What is being written is sent or given up first.
      const away = this.#editing !== null && !tool.closest("form");
      tool.disabled = generating || away || tool.dataset.end !== undefined;
    }
  }

  send = () => {
    const text = this.#message.value.trim();
    if (!text || this.session.generating || this.#editing !== null) return;
    this.#message.value = "";
    this.#talk.say("user", text);
    return this.#answer();
  };

  /** Answer the last question once more; the answer that is there stays at hand. */
  again = () => {
    const last = this.#talk.turns.at(-1);
    if (!last || this.session.generating || this.#editing !== null) return;
    if (last.role === "assistant") return this.#anew(last);
    return this.#answer();
  };

  /** Show another version of the last turn that has one. @param {number} by */
  flip = (by) => {
    const last = this.#talk.turns.findLast(({ versions }) => versions > 1);
    if (last && !this.session.generating && this.#editing === null) this.#flip(last, by);
  };

  /** @param {Turn} turn @param {number} by */
  #flip({ id }, by) {
    const place = this.#talk.turns.findIndex((turn) => turn.id === id);
    this.#talk.flip(id, by);
    this.#draw();
    this.changed();
    return this.#log.children[place];
  }

  /** @param {Turn} answer */
  #anew(answer) {
    const { end } = this.#talk;
    this.#talk.before(answer.id);
    return this.#answer({ versions: answer.versions, otherwise: end });
  }

  /** @param {{versions?: number, otherwise?: number}} [how] how many answers there are already; what to show if this one fails */
  async #answer({ versions = 0, otherwise } = {}) {
    const { session, settings } = this;
    session.generating = true;
    session.givenUp = false;
    session.notices.clear();
    show();
    this.#editing = null;
    this.#draw();
    const body = this.#add("assistant", "");
    this.#live = { text: "", body };
    body.classList.add("live");
    this.#toEnd();
    this.changed();
    /** @type {{ids: number[], text: string, prompt_length: number}|null} */
    let read = null;
    try {
      await session.ensure();
      if (session.givenUp) return;
      this.#meter.start();
      const asked = settings.generateOptions();
      // The same seed would give the same answer.
      const seed = asked.seed === undefined ? {} : { seed: asked.seed + versions };
      const result = await patiently(() => lm.complete({ ...asked, ...seed, messages: this.#talk.messages }));
      this.#live.text = result.text;
      const { prompt_ids, ids, text } = result;
      read = { ids: [...prompt_ids, ...ids], text, prompt_length: prompt_ids.length };
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
      else if (otherwise !== undefined) this.#talk.goTo(otherwise);
      session.generating = false;
      this.#draw();
      if (read && text) this.#heard = { of: this.#state, ...read };
      this.changed();
      this.#message.focus();
    }
  }

  /** What is shown, and whose ids it is read in. */
  get #state() {
    return `${this.session.vocabulary} ${this.#talk.version}`;
  }

  /** Tell whoever looks inside of the conversation, once it is another one. */
  async #tell() {
    const { session } = this;
    if (!this.isOpen || session.busy || this.#told === this.#state) return;
    const of = (this.#told = this.#state);
    try {
      if (this.#heard?.of !== of) {
        const ids = this.#talk.isEmpty ? [] : await lm.encode(this.#talk.messages);
        this.#heard = { of, ids, text: "", prompt_length: ids.length };
      }
      if (of !== this.#state || !this.isOpen) return;
      const { of: _, ...detail } = this.#heard;
      announce(detail);
    } catch {
      // Without ids there is nothing to look into; whoever answers next says why.
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
    const { turns } = this.#talk;
    for (const turn of turns) this.#add(turn.role, turn.content, turn);
    element("chat-empty").hidden = turns.length > 0;
    element("old-chat").hidden = !this.#talk.canBringBack;
    this.#toEnd();
  }

  /** @param {Turn["role"]} role @param {string} content @param {Turn} [turn] missing while it is being written */
  #add(role, content, turn) {
    const [item, name, body, tools] = ["article", "h2", "div", "div"].map((tag) => document.createElement(tag));
    item.className = `turn ${role}`;
    name.className = "turn-name";
    name.textContent = role === "user" ? "You" : "Model";
    body.className = "turn-text";
    tools.className = "turn-tools";
    if (turn && turn.id === this.#editing) {
      item.append(name, this.#editor(turn));
    } else {
      fill(body, content);
      if (turn) tools.append(...this.#tools(turn));
      item.append(name, body, tools);
    }
    element("chat-empty").hidden = true;
    element("old-chat").hidden = true;
    this.#log.append(item);
    return body;
  }

  /** @param {Turn} turn */
  #tools(turn) {
    const edit = quiet("Edit", () => {
      this.#editing = turn.id;
      this.#draw();
      this.changed();
      this.#log.querySelector("textarea")?.focus();
    });
    const copy = quiet("Copy", () => copyText(turn.content));
    const versions = turn.versions > 1 ? [this.#versions(turn)] : [];
    const unanswered = turn.id === this.#talk.end ? [quiet("Answer", this.again)] : [];
    if (turn.role === "user") return [...versions, ...unanswered, edit, copy];
    return [...versions, quiet("Regenerate", () => this.#anew(turn)), edit, copy];
  }

  /** @param {Turn} turn */
  #versions(turn) {
    const group = document.createElement("span");
    const count = document.createElement("span");
    group.className = "versions";
    group.role = "group";
    group.ariaLabel = "Versions";
    count.textContent = `${turn.version + 1}/${turn.versions}`;
    const step = (/** @type {string} */ sign, /** @type {string} */ name, /** @type {number} */ by) => {
      const button = quiet(sign, () => {
        const drawn = this.#flip(turn, by);
        const same = drawn.querySelector(`[data-by="${by}"]:enabled`) ?? drawn.querySelector("[data-by]:enabled");
        if (same instanceof HTMLElement) same.focus();
      });
      button.ariaLabel = `${name} version`;
      button.title = `${name} version`;
      button.dataset.by = String(by);
      if (turn.version + by < 0 || turn.version + by >= turn.versions) button.dataset.end = "";
      return button;
    };
    group.append(step("‹", "Previous", -1), count, step("›", "Next", 1));
    return group;
  }

  /** @param {Turn} turn */
  #editor(turn) {
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
      this.#editing = null;
      this.#draw();
      this.changed();
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const content = text.value.trim();
      if (!content) return;
      if (turn.role !== "user") {
        this.#talk.replace(turn.id, content);
        return done();
      }
      // What was answered was an answer to something else: it stays with what was asked.
      this.#talk.before(turn.id);
      this.#talk.say("user", content);
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
