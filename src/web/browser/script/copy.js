// Buttons that copy: their own text, or the code beside them.

async function copyFrom(button) {
  const code = button.parentElement.querySelector('code')
  let said = 'Copied'
  try {
    await navigator.clipboard.writeText(button.dataset.copy ?? code.textContent)
  } catch {
    getSelection().selectAllChildren(code)
    said = 'Selected'
  }
  button.textContent = said
  setTimeout(() => {
    button.textContent = 'Copy'
  }, 2000)
}

document.addEventListener('click', ({ target }) => {
  const button = target.closest?.('.copy')
  if (button) copyFrom(button)
})
