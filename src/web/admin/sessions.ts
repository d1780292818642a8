import { isToken } from '../../http/bearer'
import * as Crypto from '../../protocol/Crypto'

/** What a signed-in operator's browser has, besides the cookie itself. */
export type Session = {
  /** Sent with each form of this session. */
  csrf: string
  /** Unix ms. */
  signedInAt: number
  /** How the last action ended, until a page has shown it. */
  done?: { ok: boolean; text: string } | undefined
}

export type Sessions = ReturnType<typeof createSessions>

/** A session that is not used for this time ends, ms. */
export const idleMs = 30 * 60_000
/** Every session ends after this time, ms. */
export const longestMs = 12 * 3_600_000
const sessionsMax = 64

type Kept = Session & { usedAt: number; tokenHash: string }

/**
 * The operators that are signed in, in memory: a restart ends all sessions, and a copy of the database
 * has none. The value of a cookie is not kept, only its hash.
 * `now`: unix ms.
 */
export function createSessions(now: () => number) {
  /** By the hash of the cookie's value; the oldest first. */
  const kept = new Map<string, Kept>()

  const end = (values: readonly string[]) => {
    for (const value of values) kept.delete(Crypto.sha256(value))
  }
  const isOver = ({ signedInAt, usedAt, tokenHash }: Kept, adminToken: string) => {
    const at = now()
    // A clock that was set back must not lengthen a session.
    const isLate = at >= usedAt + idleMs || at >= signedInAt + longestMs || at < signedInAt
    return isLate || !isToken(Crypto.sha256(adminToken), tokenHash)
  }
  return {
    /** Starts a session with a new value for the cookie, and ends the one that the browser had. */
    open({ adminToken, previous }: { adminToken: string; previous: readonly string[] }): string {
      end(previous)
      const value = randomText()
      const at = now()
      const tokenHash = Crypto.sha256(adminToken)
      kept.set(Crypto.sha256(value), { csrf: randomText(), signedInAt: at, usedAt: at, tokenHash })
      for (const key of kept.keys()) {
        if (kept.size <= sessionsMax) break
        kept.delete(key)
      }
      return value
    },
    /** The session of a cookie, which counts as used now. */
    find(values: readonly string[], adminToken: string): Session | undefined {
      for (const value of values) {
        const key = Crypto.sha256(value)
        const found = kept.get(key)
        if (found === undefined) continue
        if (isOver(found, adminToken)) {
          kept.delete(key)
          continue
        }
        found.usedAt = now()
        return found
      }
      return undefined
    },
    /** Ends the sessions of these cookies. */
    end,
    endAll: (): void => kept.clear(),
  }
}

/** 32 random bytes. */
function randomText(): string {
  return Buffer.from(crypto.getRandomValues(new Uint8Array(32))).toString('base64url')
}
