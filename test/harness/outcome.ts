/**
 * How a promise ended, in place of `expect(promise).rejects` and `.resolves`. Those run the event loop
 * inside their own call until the promise has ended (Bun 1.4.4). A test often continues inside a request
 * that a server of its process has received, and then the next requests overwrite that one: its URL
 * and its body become pieces of theirs.
 */

/** A function that throws what the promise was rejected with, or returns its value. */
export async function outcomeOf<T>(promise: T | Promise<T>): Promise<() => T> {
  try {
    const value = await promise
    return () => value
  } catch (error) {
    return () => {
      throw error
    }
  }
}

/** What the promise was rejected with. Throws when it was fulfilled. */
export async function failureOf(promise: Promise<unknown>): Promise<unknown> {
  try {
    await promise
  } catch (error) {
    return error
  }
  throw new Error('the promise was fulfilled')
}
