// Live prices of the stock tokens, and the links that choose one.

/** Shows the state of each token, and lets only those be ordered that can be bought now. */
async function refresh(table) {
  const states = JSON.parse(table.dataset.states)
  const status = document.querySelector('.live')
  try {
    const response = await fetch(table.dataset.list, { credentials: 'omit' })
    if (!response.ok) throw new Error(String(response.status))
    const { stocks } = await response.json()
    for (const { symbol, price, status: state } of stocks) {
      const row = table.querySelector(`tr[data-symbol="${CSS.escape(symbol)}"]`)
      if (row === null) continue
      const field = (name) => row.querySelector(`[data-field=${name}]`)
      field('price').textContent = price === null ? '-' : `$${Number(price).toFixed(2)}`
      const { tone, sells, text } = states[state] ?? states.closed
      const badge = { class: `badge ${tone}` }
      field('status').replaceChildren(element('span', badge, String(state).replaceAll('-', ' ')))
      row.dataset.closed = text
      row.querySelector('[data-buy]').hidden = !sells
    }
    dispatchEvent(new Event('turnpike:market'))
    status.textContent = `Prices of ${new Date().toLocaleTimeString([], { timeZoneName: 'short' })}`
  } catch {
    status.textContent = 'Prices are not available now. The next attempt is in 15 seconds.'
  }
}

for (const table of document.querySelectorAll('table[data-list]')) {
  refresh(table)
  setInterval(() => {
    if (document.visibilityState === 'visible') refresh(table)
  }, 15_000)
  table.addEventListener('click', (event) => {
    const link = event.target.closest('[data-buy]')
    const form = document.querySelector('form.order')
    if (link === null || form === null) return
    event.preventDefault()
    form.elements.symbol.value = link.dataset.buy
    form.elements.symbol.dispatchEvent(new Event('input', { bubbles: true }))
    form.parentElement.scrollIntoView()
    form.elements.usdg.focus({ preventScroll: true })
  })
}
