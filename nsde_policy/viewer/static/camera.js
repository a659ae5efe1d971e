"use strict";
// The picture of a policy's camera, with keypoints of sampled futures drawn over it as the server sends them.

const CAMERA_SIDE = 480;                 // longer side of the drawing, pixels; the page scales it

/** Make the figure of one panel. */
function makeCamera(index) {
  const element = document.createElement("figure"), canvas = document.createElement("canvas");
  const caption = document.createElement("figcaption"), image = new Image();
  element.className = "camera";
  canvas.setAttribute("role", "img");
  element.append(canvas, caption);
  const camera = { element, canvas, caption, image, index, data: null, drawn: 0 };
  image.addEventListener("load", () => drawCamera(camera));
  return camera;
}

/** Put the figures of policies with cameras into a place beside the only table, or else into the card. */
function placeCameras(beside) {
  const card = $("camera-card"), shown = panels.filter((panel) => methodOf(panel.name)?.camera);
  for (const panel of panels) if (!shown.includes(panel)) panel.camera.element.remove();
  card.hidden = !shown.length || !!beside;
  if (!beside) card.replaceChildren(...shown.map((panel) => panel.camera.element));
  else if (shown.length) beside.insertBefore(shown[0].camera.element, legendCard.parentElement === beside ? legendCard : null);
}

function showCamera(camera, data) {
  camera.data = data;
  camera.image.src = `data:image/png;base64,${data.png}`;
}

function drawCamera(camera) {
  const { canvas, data, image } = camera, scale = CAMERA_SIDE / Math.max(data.width, data.height);
  const width = Math.round(data.width * scale), height = Math.round(data.height * scale);
  if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
  const text = `what the policy sees, ${data.width} × ${data.height} px`;
  if (camera.caption.textContent !== text) camera.caption.textContent = text;
  canvas.setAttribute("aria-label", `Camera ${data.name} of table ${camera.index + 1}, with ${data.paths.length} keypoints`);
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(image, 0, 0, width, height);
  context.lineCap = "round";
  data.paths.forEach((_, k) => drawKeypoint(context, data, k, width / 1000, height / 1000));
  camera.drawn++;
}

/** Draw one keypoint: a dot where it is, the mean path of the futures, and their ends. */
function drawKeypoint(context, data, k, scaleX, scaleY) {
  const colour = `hsl(${360 * k / data.paths.length} 82% 44%)`;
  const points = (row) => Array.from({ length: row.length / 2 }, (_, i) => [row[2 * i] * scaleX, row[2 * i + 1] * scaleY]);
  const path = points(data.paths[k]);
  if (path.length > 1) {
    for (const [x, y] of points(data.ends[k])) scene.drawCircle(context, x, y, 1.6, { fill: colour, fillAlpha: 0.55 });
    scene.drawLine(context, path, { stroke: "#ffffff", strokeAlpha: 0.7, lineWidth: 4.5 });
    scene.drawLine(context, path, { stroke: colour, lineWidth: 2.2 });
  }
  scene.drawCircle(context, ...path[0], 4.5, { fill: colour, stroke: "#ffffff", lineWidth: 1.2 });
}
