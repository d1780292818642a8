// The panels of a page.

function purchaseOf(panel) {
  const { method, target, body } = panel.dataset
  return { method, target, body }
}

/** Runs one purchase, or goes on with the kept one, and tells how it ended. */
async function run(panel, wallet) {
  if (panel.dataset.busy === 'true') return
  const purchase = purchaseOf(panel)
  const store = storeOf(purchase)
  const status = panel.querySelector('.progress')
  const say = (text, className = '') => {
    status.className = `progress ${className}`
    status.replaceChildren(text)
  }
  panel.dataset.busy = 'true'
  setDisabled(panel, true)
  try {
    const kept = store.read()
    if (kept !== undefined) say(`Asking again with the payment of ${kept.what} ...`)
    if (kept === undefined && wallet === undefined)
      throw new Stopped('This payment has ended in another window. Nothing was paid here.')
    const order = await store.alone(async () => {
      const done = kept ? await finish(purchase, store, say) : await buy(panel, wallet, store, say)
      const path = orderOf(done.response)
      await present(panel, path === undefined ? done : await followOrder(path, done, say), say)
      store.remove(done.credential)
      return path
    })
    paidOf.set(panel, JSON.stringify(purchase))
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
    setDisabled(panel, false)
    offer(panel)
    // A button that was disabled has lost the focus.
    if (document.activeElement === document.body)
      panel.querySelector('.wallets button')?.focus({ preventScroll: true })
  }
}

function setDisabled(panel, isDisabled) {
  for (const button of panel.querySelectorAll('.wallets button')) button.disabled = isDisabled
}

/** What the buttons of a panel say, so that only a change replaces them: a press needs the same one. */
const shownOf = new WeakMap()
/** The purchase of a panel that was answered last. */
const paidOf = new WeakMap()

/** The buttons of a panel: one for each wallet, or one to go on with a payment that is kept. */
function offer(panel) {
  if (panel.dataset.busy === 'true') return
  const purchase = purchaseOf(panel)
  const kept = storeOf(purchase).read()
  const names = walletsNow().map(({ info }) => [
    String(info.name ?? 'wallet').slice(0, 40),
    String(info.icon),
  ])
  const verb = paidOf.get(panel) === JSON.stringify(purchase) ? 'Pay again with' : 'Pay with'
  const shown = JSON.stringify(kept ? [kept.what, kept.redeem] : [verb, ...names])
  if (shownOf.get(panel) === shown) return
  shownOf.set(panel, shown)
  panel.querySelector('label').hidden = kept !== undefined
  const place = panel.querySelector('.wallets')
  place.replaceChildren(...(kept ? resuming(panel, kept) : starting(panel, verb, names)))
}

function resuming(panel, { redeem, what }) {
  const note = redeem
    ? `You paid ${what}, and the answer was not delivered yet. Fetching it again costs nothing.`
    : `You signed a payment of ${what}, and its answer did not arrive. Asking again does not pay twice.`
  return [
    element('p', {}, note),
    element('button', { type: 'button', onclick: () => run(panel) }, 'Fetch the answer'),
  ]
}

function starting(panel, verb, names) {
  if (names.length === 0)
    return [
      element(
        'p',
        {},
        'This browser has no wallet. Install one that holds stablecoins, or pay by a command.',
      ),
    ]
  return names.map(([name, icon], at) =>
    element(
      'button',
      // A wallet may have announced another provider since.
      { type: 'button', onclick: () => run(panel, walletsNow()[at]) },
      ...iconOf({ icon }),
      `${verb} ${name}`,
    ),
  )
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
