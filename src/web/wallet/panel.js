// The panels of a page.

function purchaseOf(panel) {
  const { method, target, body } = panel.dataset
  return { method, target, body }
}

/** Runs one purchase, or goes on with the kept one, and tells how it ended. */
async function run(panel, wallet) {
  if (panel.dataset.busy === 'true') return
  const store = storeOf(purchaseOf(panel))
  const status = panel.querySelector('.progress')
  const say = (text, className = '') => {
    status.className = `progress ${className}`
    status.replaceChildren(text)
  }
  panel.dataset.busy = 'true'
  for (const button of panel.querySelectorAll('button')) button.disabled = true
  try {
    const kept = store.read()
    if (kept !== undefined) say(`Asking again with the payment of ${kept.what} ...`)
    if (kept === undefined && wallet === undefined)
      throw new Stopped('This payment has ended in another window. Nothing was paid here.')
    const order = await store.alone(async () => {
      const done = kept
        ? await finish(purchaseOf(panel), store, say)
        : await buy(panel, wallet, store, say)
      const path = orderOf(done.response)
      await present(panel, path === undefined ? done : await followOrder(path, done, say), say)
      store.remove()
      return path
    })
    say(order === undefined ? 'Paid and delivered.' : 'The order has ended.', 'good')
  } catch (error) {
    const isKnown = error instanceof Stopped
    say(
      isKnown ? error.message : `The wallet said: ${String(error?.message ?? error).slice(0, 300)}`,
      'bad',
    )
    const list = (isKnown ? error.details : []).map((text) =>
      element('p', { class: 'fault' }, text),
    )
    status.append(...list)
  } finally {
    panel.dataset.busy = 'false'
    offer(panel)
  }
}

/** The buttons of a panel: one for each wallet, or one to go on with a payment that is kept. */
function offer(panel) {
  if (panel.dataset.busy === 'true') return
  const place = panel.querySelector('.wallets')
  const kept = storeOf(purchaseOf(panel)).read()
  panel.querySelector('label').hidden = kept !== undefined
  if (kept !== undefined) {
    const note = kept.redeem
      ? `You paid ${kept.what}, and the answer was not delivered yet. Fetching it again costs nothing.`
      : `You signed a payment of ${kept.what}, and its answer did not arrive. Asking again does not pay twice.`
    const button = element(
      'button',
      { type: 'button', onclick: () => run(panel) },
      'Fetch the answer',
    )
    place.replaceChildren(element('p', {}, note), button)
    return
  }
  const found = walletsNow()
  const buttons = found.map((wallet) => {
    const name = String(wallet.info.name ?? 'wallet').slice(0, 40)
    const start = () => run(panel, wallet)
    return element(
      'button',
      { type: 'button', onclick: start },
      ...iconOf(wallet.info),
      `Pay with ${name}`,
    )
  })
  const none = element(
    'p',
    {},
    'This browser has no wallet. Install one that holds stablecoins, or pay by a command.',
  )
  place.replaceChildren(...(buttons.length > 0 ? buttons : [none]))
}

function prepare(panel) {
  panel.hidden = false
  offer(panel)
  addEventListener('turnpike:wallets', () => offer(panel))
  // Another window has kept or finished a payment.
  addEventListener('storage', () => offer(panel))
  panel.addEventListener('turnpike:changed', () => offer(panel))
}

for (const panel of document.querySelectorAll('.wallet')) prepare(panel)
