"use strict";
// Mouse and finger on the tables: drag the block or the agent (play), lead the agent (collect).

const RELEASE_MS = 220;                  // until frames show the result, the page draws the dragged pose itself
const coarsePointer = matchMedia("(pointer: coarse)");

const handleOf = ([x, y, angle]) => [x - 141 * Math.sin(angle), y + 141 * Math.cos(angle)];
const centreOf = ([x, y, angle]) => {
  const [u, v] = hello.centre;
  return [x + u * Math.cos(angle) - v * Math.sin(angle), y + u * Math.sin(angle) + v * Math.cos(angle)];
};

function isInside(points, x, y) {
  let odd = false;
  for (let i = 0, j = points.length - 1; i < points.length; j = i++) {
    const [xi, yi] = points[i], [xj, yj] = points[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) odd = !odd;
  }
  return odd;
}

/** Convert the position of an event to table pixels. */
function toTable(lane, event) {
  const box = lane.canvas.getBoundingClientRect();
  return [(event.clientX - box.left) * scene.side / box.width, (event.clientY - box.top) * scene.side / box.height];
}

/** Convert screen pixels to table pixels for fingers; a mouse needs no margin. */
const fingerReach = (lane, pixels) => (coarsePointer.matches ? pixels * scene.side / lane.canvas.clientWidth : 0);

/** Return what lies at a point: "agent", "handle", "block" or null. */
function hitTest(lane, x, y) {
  if (!lane.pose) return null;
  const [ax, ay] = lane.pose, block = lane.pose.slice(2), [hx, hy] = handleOf(block), reach = fingerReach(lane, 24);
  if (Math.hypot(x - ax, y - ay) < Math.max(scene.radius + 6, reach)) return "agent";
  if (Math.hypot(x - hx, y - hy) < Math.max(15, reach)) return "handle";
  return isInside(scene.corners(block), x, y) ? "block" : null;
}

/** Rotate a block about its centre of gravity. */
function rotatePose(pose, angle) {
  const [cx, cy] = centreOf(pose), next = [pose[0], pose[1], pose[2] + angle], [nx, ny] = centreOf(next);
  return [next[0] + cx - nx, next[1] + cy - ny, next[2]];
}

/** Keep a block between the walls, as the server does. */
function clampPose(pose) {
  const points = scene.corners(pose), xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
  const correction = (values) => Math.max(7 - Math.min(...values), 0) + Math.min(504 - Math.max(...values), 0);
  return [pose[0] + correction(xs), pose[1] + correction(ys), pose[2]];
}

/** Call `action` at most thirty times a second; the last request is never lost. */
function throttle(action) {
  let last = 0, timer = 0;
  const run = () => { clearTimeout(timer); timer = 0; last = performance.now(); action(); };
  const request = (immediately) => {
    const wait = 33 - (performance.now() - last);
    if (immediately || wait <= 0) run(); else if (!timer) timer = setTimeout(run, wait);
  };
  request.cancel = () => { clearTimeout(timer); timer = 0; };
  return request;
}

/* ---- dragging ---- */

const sendHold = throttle(() => {
  if (!drag || drag.released) return;
  const [x, y, angle] = drag.what === "block" ? drag.pose : [drag.x, drag.y, 0];
  send({
    do: "hold", lane: drag.lane.index, what: drag.what,
    x: clamp(x, -999, 999), y: clamp(y, -999, 999), angle: angleBetween(0, angle),
  });
});

function startDrag(lane, event) {
  const [x, y] = toTable(lane, event), what = hitTest(lane, x, y);
  if (!what || drag) return;
  event.preventDefault();
  lane.canvas.setPointerCapture(event.pointerId);
  drag = { lane, id: event.pointerId, what: what === "agent" ? "agent" : "block", x, y, pose: lane.pose.slice(2), handle: what === "handle" };
  sendHold(true);
}

function moveDrag(lane, event) {
  const [x, y] = toTable(lane, event);
  if (drag?.id !== event.pointerId) {
    const what = hitTest(lane, x, y);
    lane.hover = what === "block" || what === "handle" || (lane.hover && isInside(scene.corners(lane.pose.slice(2)), x, y));
    lane.canvas.style.cursor = what ? "grab" : "default";
    return;
  }
  lane.canvas.style.cursor = "grabbing";
  if (drag.what === "block") {
    const [cx, cy] = centreOf(drag.pose);
    if (drag.handle || event.shiftKey) {
      drag.pose = clampPose(rotatePose(drag.pose, angleBetween(Math.atan2(drag.y - cy, drag.x - cx), Math.atan2(y - cy, x - cx))));
    } else drag.pose = clampPose([drag.pose[0] + x - drag.x, drag.pose[1] + y - drag.y, drag.pose[2]]);
  }
  Object.assign(drag, { x, y });
  sendHold(false);
}

function endDrag(ended) {
  send({ do: "release" });
  Object.assign(ended, { id: null, released: true });
  setTimeout(() => { if (drag === ended) drag = null; }, RELEASE_MS);
}

function turnByWheel(lane, event) {
  const [x, y] = toTable(lane, event), holding = drag && drag.id !== null && drag.what === "block";
  if (!holding && hitTest(lane, x, y) !== "block") return;
  event.preventDefault();
  const angle = clamp(event.deltaY, -60, 60) * 0.004;
  if (holding) { drag.pose = clampPose(rotatePose(drag.pose, angle)); sendHold(true); return; }
  const pose = clampPose(rotatePose(drag?.pose ?? lane.pose.slice(2), angle));
  const turned = drag = { lane, id: null, what: "block", x, y, pose };
  sendHold(true);
  clearTimeout(lane.wheelTimer);
  lane.wheelTimer = setTimeout(() => endDrag(turned), 160);
}

/* ---- recording: the agent follows once the pointer has reached it ---- */

let pointer = null, pointerAway = false;
const sendAim = throttle(() => {
  const { lane, x, y } = pointer;
  if (!lane.pose || !state) return;
  const near = Math.hypot(x - lane.pose[0], y - lane.pose[1]) < Math.max(scene.radius + 8, fingerReach(lane, 32));
  if (pointerAway && state.phase !== "ready" && !near) return;  // wait at the agent, so that no jump is recorded
  pointerAway = false;
  send({ do: "aim", x: clamp(x, 0, scene.side), y: clamp(y, 0, scene.side) });
  if (state.phase === "ready" && near) send({ do: "take" });
});

function aim(lane, event, immediately) {
  const [x, y] = toTable(lane, event);
  pointer = { lane, x, y };
  sendAim(immediately);
}

/** Pause recording: the pointer left the table, the finger was lifted or the page is hidden. */
function stopAiming() {
  if (hello?.mode !== "collect" || pointerAway) return;
  sendAim.cancel();
  pointerAway = true;
  send({ do: "release" });
}
document.addEventListener("visibilitychange", () => { if (document.hidden) stopAiming(); });

function addPointerHandlers(lane) {
  const { canvas } = lane, collecting = () => hello.mode === "collect";
  canvas.addEventListener("touchstart", (event) => {    // a finger scrolls the page unless it holds something
    if (collecting() || hitTest(lane, ...toTable(lane, event.changedTouches[0]))) event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => (collecting() ? aim(lane, event, true) : startDrag(lane, event)));
  canvas.addEventListener("pointermove", (event) => (collecting() ? aim(lane, event, false) : moveDrag(lane, event)));
  for (const type of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(type, (event) => {
      if (collecting() && event.pointerType !== "mouse") stopAiming();
      if (drag?.id !== event.pointerId) return;
      sendHold(true);
      endDrag(drag);
    });
  }
  canvas.addEventListener("wheel", (event) => { if (!collecting()) turnByWheel(lane, event); }, { passive: false });
  canvas.addEventListener("pointerleave", () => { lane.hover = false; stopAiming(); });
}
