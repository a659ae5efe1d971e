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
function toTable(panel, event) {
  const box = panel.canvas.getBoundingClientRect();
  return [(event.clientX - box.left) * scene.side / box.width, (event.clientY - box.top) * scene.side / box.height];
}

/** Convert screen pixels to table pixels for fingers; a mouse needs no margin. */
const fingerReach = (panel, pixels) => (coarsePointer.matches ? pixels * scene.side / panel.canvas.clientWidth : 0);

/** Return what lies at a point: "agent", "handle", "block" or null. */
function hitTest(panel, x, y) {
  if (!panel.pose) return null;
  const [ax, ay] = panel.pose, reach = fingerReach(panel, 24);
  if (Math.hypot(x - ax, y - ay) < Math.max(scene.radius + 6, reach)) return "agent";
  if (!scene.outline) return null;                      // the task has no block
  const block = panel.pose.slice(2), [hx, hy] = handleOf(block);
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

const sendDrag = throttle(() => {
  if (!drag || drag.released) return;
  const [x, y, angle] = drag.what === "block" ? drag.pose : [drag.x, drag.y, 0];
  send({ do: "drag", what: drag.what, x: clamp(x, -999, 999), y: clamp(y, -999, 999), angle });
});

function startDrag(panel, event) {
  const [x, y] = toTable(panel, event), what = hitTest(panel, x, y);
  if (!what || drag) return;
  event.preventDefault();
  panel.canvas.setPointerCapture(event.pointerId);
  drag = { panel, id: event.pointerId, what: what === "agent" ? "agent" : "block", x, y, pose: panel.pose.slice(2), handle: what === "handle" };
  sendDrag(true);
}

function moveDrag(panel, event) {
  const [x, y] = toTable(panel, event);
  if (drag?.id !== event.pointerId) {
    const what = hitTest(panel, x, y);
    panel.hover = what === "block" || what === "handle" || (panel.hover && scene.outline && isInside(scene.corners(panel.pose.slice(2)), x, y));
    panel.canvas.style.cursor = what ? "grab" : "default";
    return;
  }
  panel.canvas.style.cursor = "grabbing";
  if (drag.what === "block") {
    const [cx, cy] = centreOf(drag.pose);
    if (drag.handle) {
      drag.pose = clampPose(rotatePose(drag.pose, angleBetween(Math.atan2(drag.y - cy, drag.x - cx), Math.atan2(y - cy, x - cx))));
    } else drag.pose = clampPose([drag.pose[0] + x - drag.x, drag.pose[1] + y - drag.y, drag.pose[2]]);
  }
  Object.assign(drag, { x, y });
  sendDrag(false);
}

function endDrag(ended) {
  send({ do: "release" });
  Object.assign(ended, { id: null, released: true });
  setTimeout(() => { if (drag === ended) drag = null; }, RELEASE_MS);
}

/* ---- recording: the agent follows once the pointer has reached it ---- */

let pointer = null;
const sendTarget = throttle(() => {
  const [x, y] = pointer.map((value) => clamp(value, 0, scene.side));
  send({ do: "move_agent", x, y });
});

function followPointer(panel, event, immediately) {
  pointer = toTable(panel, event);
  sendTarget(immediately);
}

/** Pause recording: the pointer left the table, the finger was lifted or the page is hidden. */
function pauseRecording() {
  if (hello?.mode !== "collect") return;
  sendTarget.cancel();
  send({ do: "release" });
}
document.addEventListener("visibilitychange", () => { if (document.hidden) pauseRecording(); });

function addPointerHandlers(panel) {
  const { canvas } = panel, collecting = () => hello.mode === "collect";
  canvas.addEventListener("touchstart", (event) => {    // a finger scrolls the page unless it holds something
    if (collecting() || hitTest(panel, ...toTable(panel, event.changedTouches[0]))) event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => (collecting() ? followPointer(panel, event, true) : startDrag(panel, event)));
  canvas.addEventListener("pointermove", (event) => (collecting() ? followPointer(panel, event, false) : moveDrag(panel, event)));
  for (const type of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(type, (event) => {
      if (collecting() && event.pointerType !== "mouse") pauseRecording();
      if (drag?.id !== event.pointerId) return;
      sendDrag(true);
      endDrag(drag);
    });
  }
  canvas.addEventListener("pointerleave", () => { panel.hover = false; pauseRecording(); });
}
