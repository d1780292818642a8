import { readFileSync } from 'node:fs'

/** The environment as a process has it. */
export type Env = Readonly<Record<string, string | undefined>>

/** The value of a name; undefined when it is not set or empty. */
export type Lookup = (name: string) => string | undefined

/**
 * Looks a name up in the environment, or in the file that `NAME_FILE` names, trimmed. Only what is
 * asked for is read: other programs have variables that end in `_FILE`, too. The lookup throws
 * `EnvironmentError` when both are set or the file cannot be read; it never tells a value.
 */
export function readEnv(env: Env): Lookup {
  return (name) => {
    const value = env[name]
    const file = env[`${name}_FILE`]
    if (!file) return value || undefined
    if (value)
      throw new EnvironmentError(`${name} and ${name}_FILE are both set: unset one of them`)
    try {
      return readFileSync(file, 'utf8').trim() || undefined
    } catch (error) {
      const code = codeOf(error)
      throw new EnvironmentError(`the file that ${name}_FILE names cannot be read (${code})`)
    }
  }
}

/** The system's error code, such as ENOENT. Its message would tell the path, an environment value. */
export function codeOf(error: unknown): string {
  const code = error instanceof Error && 'code' in error ? error.code : undefined
  return typeof code === 'string' ? code : 'unknown error'
}

/** The environment, or a secret in the data directory, cannot be used. Holds no values. */
export class EnvironmentError extends Error {
  override readonly name = 'EnvironmentError'
}
