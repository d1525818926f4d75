// Exchanges the token for a cookie. By a script, since a form sends no Origin where no Referer is sent either.

const form = document.querySelector("form");
const problem = document.getElementById("problem");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  problem.hidden = true;
  try {
    const answer = await fetch("login", { method: "POST", body: new URLSearchParams({ token: form.token.value }) });
    if (answer.ok) return location.replace("./");
    problem.textContent = (await answer.json()).error;
  } catch {
    problem.textContent = "The console does not answer.";
  }
  problem.hidden = false;
  button.disabled = false;
  form.token.select();
  return undefined;
});
