// The panels of a page.

function purchaseOf(panel) {
  const { method, target, body } = panel.dataset
  return { method, target, body }
}

/** Runs one purchase, or continues the kept one, and shows how it ended. */
async function run(panel, wallet) {
  if (panel.dataset.busy === 'true') return
  const purchase = purchaseOf(panel)
  const store = storeOf(purchase)
  const status = panel.querySelector('.progress')
  const say = (text, className = '') => {
    restingOf.delete(panel)
    retryOf.delete(panel)
    status.hidden = false
    status.className = `progress ${className}`
    status.replaceChildren(text)
  }
  panel.dataset.busy = 'true'
  setDisabled(panel, true)
  try {
    const kept = store.read()
    showState(panel, kept ? 'sent' : 'busy', kept ? 'Fetching your answer' : 'Paying')
    if (kept !== undefined) say(`Asking again with the payment of ${kept.what} ...`)
    if (kept === undefined && wallet === undefined)
      throw new Stopped('This payment has ended in another window. Nothing was paid here.')
    const state = await store.alone(async () => {
      const done = kept ? await finish(purchase, store, say) : await buy(panel, wallet, store, say)
      const path = orderOf(done.response)
      const followed = path === undefined ? done : await followOrder(path, done, say)
      await present(panel, followed, say)
      store.remove(done.credential)
      return followed.state
    })
    paidOf.set(panel, JSON.stringify(purchase))
    const { text = 'Paid and delivered.', tone = 'good' } = orderStateOf(state)
    say(text, tone)
  } catch (error) {
    say(told(error), 'bad')
    if (error instanceof Stopped) {
      status.append(...error.details.map((text) => element('p', { class: 'fault' }, text)))
      if (error.label) retryOf.set(panel, error.label)
    }
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

/** The labels of a panel's buttons: only a change replaces buttons, or a press could miss its one. */
const shownOf = new WeakMap()
/** The last purchase of a panel that got its answer. */
const paidOf = new WeakMap()

/**
 * The state of a panel between payments, from what the page, this browser and its wallets say: only
 * `ready` and `done` have buttons that pay. showState names the states of a payment under way.
 */
function stateOf({ kept, isPaid, closed, names, missing }) {
  if (kept) return 'kept'
  if (isPaid) return 'done'
  if (closed) return 'closed'
  if (names.length === 0) return 'no-wallet'
  return missing ? 'missing' : 'ready'
}

/** The buttons of a panel: one for each wallet, or one to continue a kept payment. */
function offer(panel) {
  if (panel.dataset.busy === 'true') return
  const purchase = purchaseOf(panel)
  const kept = storeOf(purchase).read()
  const { closed, missing } = panel.dataset
  const found = walletsNow().map(({ info: { name, icon } }) => {
    return [String(name ?? 'wallet').slice(0, 40), String(icon)]
  })
  const names = closed ? [] : found
  const isPaid = paidOf.get(panel) === JSON.stringify(purchase)
  const state = stateOf({ kept, isPaid, closed, names, missing })
  const pays = state === 'missing' ? [] : names
  const label = retryOf.get(panel) ?? ((name) => `Pay ${isPaid ? 'again ' : ''}with ${name}`)
  const shown = JSON.stringify(
    kept ? [kept.what, kept.redeem] : [state, closed, ...pays.map(([name]) => label(name))],
  )
  const done = isOrder(panel) ? 'Your order' : 'Your answer'
  showState(panel, state, { kept: 'Not delivered yet: fetch it', done }[state])
  if (shownOf.get(panel) === shown) return
  shownOf.set(panel, shown)
  panel.querySelector('label').hidden = names.length === 0
  rest(panel, state)
  const place = panel.querySelector('.wallets')
  place.replaceChildren(...(kept ? resuming(panel, kept) : starting(panel, label, pays, isPaid)))
}

/** The text of a panel's status before its first purchase. */
const restingOf = new WeakMap()
/** Makes the labels of the buttons after a fault that the user can mend. */
const retryOf = new WeakMap()

/** Sets the status before a purchase. A kept payment was signed already, so its status is hidden. */
function rest(panel, state) {
  const text = restingOf.get(panel)
  const { closed, missing } = panel.dataset
  const other = { closed: [closed], missing: [missing], 'no-wallet': noWallet() }[state]
  if (text === undefined) {
    if (other === undefined) return
    restingOf.set(panel, '')
  }
  const status = panel.querySelector('.progress')
  status.hidden = state === 'kept'
  status.replaceChildren(...(other ?? [text]))
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

function starting(panel, label, names, isPaid) {
  const form = panel.parentElement.querySelector('form.compose, form.order')
  const more = () => {
    paidOf.delete(panel)
    panel.querySelector('.result').replaceChildren()
    panel.querySelector('.progress').replaceChildren()
    offer(panel)
    form.querySelector('input:not([type=hidden]), select')?.focus()
  }
  const button = (attributes, ...parts) =>
    element('button', { type: 'button', ...attributes }, ...parts)
  const next =
    isPaid && form
      ? [button({ onclick: more }, `Make another ${isOrder(panel) ? 'order' : 'request'}`)]
      : []
  if (isPaid && isOrder(panel)) return next
  const pays = names.map(([name, icon], at) =>
    button(
      // A wallet may have announced another provider since.
      { class: isPaid ? 'plain' : '', onclick: () => run(panel, walletsNow()[at]) },
      ...iconOf({ icon }),
      label(name),
    ),
  )
  return [...next, ...pays]
}

function prepare(panel) {
  panel.hidden = false
  restingOf.set(panel, panel.querySelector('.progress').textContent)
  offer(panel)
  addEventListener('turnpike:wallets', () => offer(panel))
  // Another window has kept or finished a payment.
  addEventListener('storage', () => offer(panel))
  panel.addEventListener('turnpike:changed', () => offer(panel))
}

for (const panel of document.querySelectorAll('.wallet')) prepare(panel)
