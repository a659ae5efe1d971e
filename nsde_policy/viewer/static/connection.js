"use strict";
// The websocket to the server: reconnect, receive, send. Loaded last: it starts the page.

let socket = null;

function connect() {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  socket = new WebSocket(`${scheme}//${location.host}/live${location.search}`);
  socket.onmessage = (event) => {
    const message = JSON.parse(event.data);
    ({ hello: onHello, state: onState, frame: onFrame, notice: onNotice })[message.type]?.(message);
  };
  socket.onclose = () => {
    showConnection(false);
    setTimeout(connect, 1000);
  };
}

function send(message) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

function showConnection(on) {
  $("live").dataset.on = on;
  document.body.dataset.offline = !on;
  showPhase();
  $("banner").hidden = on;
  if (!on) drag = null;
}

function onHello(message) {
  hello = message;
  scene = new Scene(hello);
  state = frame = null;                  // after a reconnect it may be another server
  showMode();
  showConnection(true);
}

function onState(message) {
  const rebuild = !state || state.epoch !== message.epoch || state.panels.join() !== message.panels.join();
  state = message;
  if (rebuild) buildPanels();
  panels.forEach((panel, i) => {
    panel.progress = state.progress[i];
  });
  showState();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", loadColours);
loadColours();
sizeObserver.observe($("panels"));
sizeObserver.observe($("strip"));
addEventListener("resize", () => { if (hello && panels.length) resize(); });
connect();
requestAnimationFrame(draw);
