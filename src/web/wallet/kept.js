// What this browser keeps: payments that have no answer yet, and receipts.

/** How long an unfinished payment is kept: as long as its answer can be fetched, ms. */
const keptMs = 24 * 60 * 60 * 1000

/** The purchase that this page knows of a request, as it was kept before it was sent. */
function storeOf({ method, target, body }) {
  const key = `turnpike:${method} ${target} ${body}`
  return {
    read() {
      try {
        const kept = JSON.parse(localStorage.getItem(key))
        if (kept?.keptAt > Date.now() - keptMs) return kept
      } catch {
        // Nothing that can be used.
      }
      return undefined
    },
    write: (kept) => localStorage.setItem(key, JSON.stringify({ ...kept, keptAt: Date.now() })),
    remove: () => localStorage.removeItem(key),
  }
}

function keepReceipt(receipt) {
  const key = 'turnpike:receipts'
  let kept = []
  try {
    kept = JSON.parse(localStorage.getItem(key)) ?? []
  } catch {
    // Start again.
  }
  localStorage.setItem(key, JSON.stringify([receipt, ...kept].slice(0, 50)))
}
