// Buying a stock: the form above its panel.

const orderKey = 'turnpike:POST /api/stock/buy?'

/** A stock and an amount: shows what it buys now, and lets the panel below buy it. */
function prepareOrder(form) {
  const panel = form.parentElement.querySelector('.wallet')
  const { symbol, usdg } = form.elements
  const status = form.querySelector('.quote')
  // An order that was paid and has not ended comes before a new one.
  const [kept] = Object.keys(localStorage).filter(
    (key) => key.startsWith(orderKey) && storeOf({ key }).read(),
  )
  if (kept !== undefined)
    for (const [name, value] of new URLSearchParams(kept.slice(orderKey.length)))
      if (form.elements[name]) form.elements[name].value = value.trim()
  const { closed } = panel.dataset
  const close = () => {
    const row = document.querySelector(`tr[data-symbol="${CSS.escape(symbol.value)}"]`)
    panel.dataset.closed = closed || row?.dataset.closed || ''
    panel.dispatchEvent(new Event('turnpike:changed'))
  }
  addEventListener('turnpike:market', close)
  let latest = 0
  const change = async () => {
    const query = `symbol=${encodeURIComponent(symbol.value)}&usdg=${encodeURIComponent(usdg.value)}`
    panel.dataset.target = `/api/stock/buy?${query}`
    close()
    latest += 1
    const own = latest
    const response = await fetch(`/api/stock/quote?${query}`, { credentials: 'omit' })
    const quote = await problemOf(response)
    if (own !== latest) return
    const { estimatedShares, minimumShares, invalidParams, detail } = quote
    status.textContent = response.ok
      ? `You get about ${sixDigits(estimatedShares)} ${symbol.value}, and at least ${sixDigits(minimumShares)}. Otherwise the whole amount comes back.`
      : (invalidParams ?? []).map(({ reason }) => reason).join(', ') || detail
  }
  form.addEventListener('submit', (event) => event.preventDefault())
  form.addEventListener('input', () => change().catch(() => undefined))
  change().catch(() => undefined)
}

for (const form of document.querySelectorAll('form.order')) prepareOrder(form)
