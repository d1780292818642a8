// What this browser keeps: payments that have no answer yet, and receipts.

/** How long an unfinished payment is kept: as long as its answer can be fetched, ms. */
const keptMs = 24 * 60 * 60 * 1000
/** Longer than a payment with its receipt. */
const probeCharacters = 16_384
const nothingKept =
  'This browser keeps no data of this page, so a payment whose answer is lost could not be fetched again. Allow it, or pay by a command. Nothing was paid.'

/** The purchase that this page knows of a request, as it was kept before it was sent. */
function storeOf({ method, target, body, key = `turnpike:${method} ${target} ${body}` }) {
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
    write(kept) {
      try {
        localStorage.setItem(key, JSON.stringify({ ...kept, keptAt: Date.now() }))
      } catch {
        throw new Stopped(nothingKept)
      }
    },
    /** Throws before anything is signed when nothing can be kept, as in some private windows. */
    assertUsable() {
      const probe = 'turnpike:probe'
      try {
        localStorage.setItem(probe, 'x'.repeat(probeCharacters))
        localStorage.removeItem(probe)
      } catch {
        throw new Stopped(nothingKept)
      }
    },
    /** Removes the payment with this credential: another window may have kept a later one. */
    remove(credential) {
      if (this.read()?.credential === credential) localStorage.removeItem(key)
    },
    /**
     * Runs a purchase while no other window of this browser runs the same one. Browsers have the locks
     * on https and on localhost.
     */
    alone(work) {
      if (navigator.locks === undefined) return work()
      return navigator.locks.request(key, { ifAvailable: true }, (lock) => {
        if (lock === null)
          throw new Stopped('Another window of this browser is paying for this. Continue there.')
        return work()
      })
    },
  }
}

/** Whether it was kept: the answer is shown in any case. */
function keepReceipt(receipt) {
  const key = 'turnpike:receipts'
  let kept = []
  try {
    kept = JSON.parse(localStorage.getItem(key)) ?? []
  } catch {
    // Start again.
  }
  try {
    localStorage.setItem(key, JSON.stringify([receipt, ...kept].slice(0, 50)))
    return true
  } catch {
    return false
  }
}
