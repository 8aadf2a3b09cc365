// The page: sends the text to /v1/tag and shows its skills. Everything that comes from the service or from the reader
// enters the document as text, never as markup.
const at = (id) => document.getElementById(id);
const text = at("text"), reading = at("reading"), threshold = at("threshold");
const GROUPS = [
  { name: "Very likely", tone: "high", from: 0.9 },
  { name: "Likely", tone: "middle", from: 0.7 },
  { name: "Possible", tone: "low", from: 0 },
];
const SAMPLE = `Maintenance technician, food production

You keep our packaging lines running. You repair conveyor belts and pumps, replace worn bearings, and read electrical diagrams to find faults quickly.

Your tasks
• Carry out preventive maintenance according to the yearly plan
• Weld stainless steel pipes and small repairs on site
• Program simple changes in the PLC of the filling machine (Siemens S7)
• Record your work in the maintenance system, and order spare parts
• Explain to operators how to clean the machines safely (HACCP)

What we ask
You have some years of experience in a technical job and a forklift licence. You speak English, and you work well in a team that runs in shifts.

What we offer
A permanent contract, 32 days of leave, a bicycle plan and fresh fruit every Monday. We are an equal opportunity employer.`;

let answer = null; // { source, skills } of the last text
let busy = false;

// A span counts code points, a JavaScript string UTF-16 units: an emoji is one there and two here.
function units(source) {
  const offsets = [0];
  for (const character of source) offsets.push(offsets.at(-1) + character.length);
  return (codePoint) => offsets[Math.min(codePoint, offsets.length - 1)];
}

function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

const percent = (probability) => (probability > 0.99 ? "> 99 %" : `${Math.round(100 * probability)} %`);
const quotes = (skill) => skill.ranges.map(([start, end]) => answer.source.slice(start, end).trim());
const key = () => at("key").value.trim();
const shown = () => answer.skills.filter((s) => s.probability === null || s.probability >= threshold.value / 100);

function link(uri) {
  if (uri.startsWith("http://data.europa.eu/esco/")) {
    return `https://esco.ec.europa.eu/en/classification/skills?uri=${encodeURIComponent(uri)}`;
  }
  return /^https?:\/\//.test(uri) ? uri : null; // a private skill may have an address of any kind
}

function problem(message) {
  at("problem").textContent = message;
  at("problem").hidden = !message;
}

async function explain(response) {
  let said = "";
  try {
    said = (await response.json()).error ?? "";
  } catch { /* an answer from something between here and the service */ }
  if (response.status === 401) {
    at("lock").hidden = false;
    at("key").focus();
    return key() ? "This key does not open the service." : "This service asks for a key.";
  }
  if (response.status === 429) return `The service is busy. Try again in ${response.headers.get("Retry-After") ?? "a few"} seconds.`;
  if (response.status === 503) return "The service is starting or stopping. Try again in a moment.";
  return said || `The service answered with status ${response.status}.`;
}

async function find() {
  const source = text.value;
  if (busy) return;
  if (!source.trim()) {
    problem("There is no text yet. Paste a vacancy first.");
    text.focus();
    return;
  }
  busy = true;
  problem("");
  at("go").setAttribute("aria-disabled", "true");
  at("go").classList.add("busy");
  at("status").textContent = "Reading the text …";
  try {
    const headers = { "Content-Type": "application/json", ...(key() && { Authorization: `Bearer ${key()}` }) };
    const body = JSON.stringify({ documents: [source], top_k: 100 });
    const response = await fetch("/v1/tag", { method: "POST", headers, body });
    if (!response.ok) throw new Error(await explain(response));
    const { results: [result], taxonomy, model } = await response.json();
    if (key()) sessionStorage.setItem("key", key());
    answer = { source, skills: result.skills, reason: result.reason };
    at("system").textContent = `${model.name} · ESCO ${taxonomy.version} · ${taxonomy.skills.toLocaleString("en")} skills`;
    at("lock").hidden = true;
    read();
    list();
    at("skills-title").focus({ preventScroll: window.innerWidth > 900 });
  } catch (error) {
    at("status").textContent = "";
    problem(error instanceof TypeError ? "The service cannot be reached." : error.message);
  } finally {
    busy = false;
    at("go").removeAttribute("aria-disabled");
    at("go").classList.remove("busy");
  }
}

// The text for reading, cut where any span begins or ends; each piece knows the skills that it speaks for.
function read() {
  const { source, skills } = answer;
  const unit = units(source);
  const cuts = new Set([0, source.length]);
  for (const skill of skills) {
    skill.ranges = skill.spans.map(({ start, end }) => [unit(start), unit(end)]);
    for (const range of skill.ranges) range.forEach((cut) => cuts.add(cut));
  }
  const edges = [...cuts].sort((a, b) => a - b);
  reading.replaceChildren();
  edges.slice(0, -1).forEach((start, i) => {
    const part = source.slice(start, edges[i + 1]);
    const speaksFor = skills.filter((s) => s.ranges.some(([from, to]) => from <= start && start < to));
    if (!speaksFor.length) {
      reading.append(part);
      return;
    }
    const mark = make("mark", { textContent: part });
    mark.skills = speaksFor;
    mark.addEventListener("pointerenter", () => light(mark.skills));
    mark.addEventListener("pointerleave", () => light([]));
    mark.addEventListener("click", () => mark.skills.find((s) => s.node?.isConnected)?.node.querySelector("button").focus());
    reading.append(mark);
  });
  mode(true);
}

function mode(reads) {
  text.hidden = reads;
  reading.hidden = !reads;
  at("edit").hidden = !reads;
  at("sample").hidden = reads;
  at("go").hidden = reads;
  at("hint").hidden = reads;
  at("legend").hidden = !reads;
}

function light(skills, scroll = false) {
  for (const skill of answer.skills) skill.node?.classList.toggle("on", skills.includes(skill));
  let first = null;
  for (const mark of reading.querySelectorAll("mark")) {
    const on = mark.skills.some((skill) => skills.includes(skill));
    mark.classList.toggle("on", on);
    if (on) first ??= mark;
  }
  if (first && scroll) reading.scrollTop = first.offsetTop - reading.clientHeight / 3;
}

function card(skill) {
  const [quote, ...more] = quotes(skill); // the first is the sentence that says it most strongly, as the evidence is
  const show = make("button", { type: "button", className: "show", textContent: skill.label });
  const head = make("div", { className: "head" }, show);
  if (skill.probability !== null) {
    const fill = make("b");
    fill.style.width = `${100 * skill.probability}%`;
    const bar = make("i", {}, fill);
    bar.setAttribute("aria-hidden", "true");
    head.append(make("span", { className: "meter" }, bar, make("span", { textContent: percent(skill.probability) })));
  }
  const address = link(skill.uri);
  if (address) {
    const open = make("a", { className: "open", href: address, target: "_blank", rel: "noopener noreferrer", textContent: "ESCO" });
    open.setAttribute("aria-label", `${skill.label} in ESCO, new tab`);
    head.append(open);
  }
  const why = make("p", { className: "why" });
  if (skill.evidence.matched) why.append("named ", make("span", { className: "tag", textContent: skill.evidence.matched }), " in ");
  why.append(make("q", { textContent: quote.length > 140 ? `${quote.slice(0, 140)} …` : quote }));
  if (more.length) why.append(` and ${more.length} more`);
  const foot = make("div", { className: "foot" }, why);
  const item = make("li", { className: "skill" }, head, foot);
  const lanes = Object.entries(skill.evidence.lanes ?? {}).sort((a, b) => b[1] - a[1]);
  if (lanes.length) {
    const rows = lanes.map(([name, z]) => make("tr", {}, make("th", { scope: "row", textContent: name }), make("td", { textContent: z.toFixed(1) })));
    foot.append(make("details", {}, make("summary", { textContent: "Signals" }),
      make("p", { textContent: "How far above all other skills each signal puts this one, in standard deviations." }),
      make("table", {}, make("tbody", {}, ...rows))));
  }
  skill.node = item;
  show.addEventListener("focus", () => light([skill], true));
  show.addEventListener("click", () => light([skill], true));
  show.addEventListener("blur", () => light([]));
  item.addEventListener("pointerenter", () => light([skill], true));
  item.addEventListener("pointerleave", () => light([]));
  return item;
}

function list() {
  const skills = answer.skills;
  const calibrated = skills.some((skill) => skill.probability !== null);
  const visible = shown();
  for (const mark of reading.querySelectorAll("mark")) {
    mark.classList.toggle("off", !mark.skills.some((skill) => visible.includes(skill)));
  }
  at("empty").hidden = true;
  at("filter").hidden = !calibrated;
  at("export").hidden = !skills.length;
  at("level").textContent = percent(threshold.value / 100);
  threshold.setAttribute("aria-valuetext", `${threshold.value} percent`);
  for (const skill of skills) skill.node = null;
  const groups = calibrated ? GROUPS : [{ name: "Best first", tone: "middle", from: -1 }];
  at("groups").replaceChildren(...groups.flatMap((group, i) => {
    const below = i ? groups[i - 1].from : Infinity;
    const inside = visible.filter((s) => (s.probability ?? 0) >= group.from && (s.probability ?? 0) < below);
    if (!inside.length) return [];
    const title = make("h3", { textContent: group.name }, make("span", { textContent: `${inside.length}` }));
    return [make("section", { className: `group ${group.tone}` }, title, make("ul", {}, ...inside.map(card)))];
  }));
  const all = skills.length === 1 ? "1 skill" : `${skills.length} skills`;
  at("status").textContent = !skills.length
    ? `No skill found: ${answer.reason}.`
    : visible.length === skills.length ? `${all} found.` : `${visible.length} of ${all} shown.`;
}

async function copy(button, content) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(content);
  } catch { // no clipboard for pages that come over plain HTTP from elsewhere
    const area = make("textarea", { value: content, className: "hidden" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  at("status").textContent = `${shown().length} skills copied.`;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = label; }, 1500);
}

function asJson() {
  const rows = shown().map((s) => ({ uri: s.uri, label: s.label, score: s.score, probability: s.probability, evidence: s.evidence, spans: s.spans, quotes: quotes(s) }));
  return JSON.stringify(rows, null, 2);
}

// A cell that begins like a formula would be run by a spreadsheet; an apostrophe keeps it a text.
function cell(value) {
  const plain = String(value ?? "");
  const safe = /^[=+\-@\t\r]/.test(plain) && typeof value !== "number" ? `'${plain}` : plain;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function asCsv() {
  const rows = shown().map((s) => [s.uri, s.label, s.score, s.probability, s.evidence.matched, quotes(s).join(" | ")]);
  return [["uri", "label", "score", "probability", "matched", "quotes"], ...rows].map((row) => row.map(cell).join(",")).join("\r\n");
}

function counted() {
  at("count").textContent = `${[...text.value].length.toLocaleString("en")} characters`;
}

at("form").addEventListener("submit", (event) => { event.preventDefault(); find(); });
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !text.hidden) { event.preventDefault(); find(); }
});
text.addEventListener("input", () => { counted(); problem(""); });
at("sample").addEventListener("click", () => { text.value = SAMPLE; counted(); problem(""); text.focus(); });
at("edit").addEventListener("click", () => { mode(false); text.focus(); });
threshold.addEventListener("input", list);
at("json").addEventListener("click", (event) => copy(event.currentTarget, asJson()));
at("csv").addEventListener("click", (event) => copy(event.currentTarget, asCsv()));
at("key").value = sessionStorage.getItem("key") ?? "";
counted();
