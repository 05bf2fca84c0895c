// Draws every chart of the page; a mark's `tip` is shown as text beside the pointer. Nothing is ever loaded.
const refuse = () => Promise.reject(new Error("this page loads nothing"));
const loader = { load: refuse, sanitize: refuse, http: refuse, file: refuse };
const tip = document.body.appendChild(document.createElement("div"));
tip.id = "tip";
tip.setAttribute("aria-hidden", "true");

function showTip(_handler, event, _item, value) {
  tip.style.display = value ? "block" : "none";
  if (!value) return;
  tip.textContent = String(value);
  const room = 12;
  const left = Math.min(event.clientX + room, window.innerWidth - tip.offsetWidth - room);
  const below = event.clientY + room + tip.offsetHeight < window.innerHeight;
  tip.style.left = `${Math.max(room, left)}px`;
  tip.style.top = `${below ? event.clientY + room : event.clientY - tip.offsetHeight - room}px`;
}

const options = {
  mode: "vega-lite", renderer: "svg", ast: true, actions: false, defaultStyle: false, loader, tooltip: showTip,
  config: window.chartConfig,
};
for (const box of document.querySelectorAll("[data-chart]")) {
  const spec = JSON.parse(box.querySelector("script").textContent);
  vegaEmbed(box.appendChild(document.createElement("div")), spec, options);
}

window.addEventListener("beforeprint", () => {
  for (const box of document.querySelectorAll("details")) box.open = true;
});
