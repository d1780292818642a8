/** Values that the build wrote into the executable; absent when the sources run. */
declare const VERSION: string | undefined
declare const COMMIT: string | undefined
declare const MODIFIED: boolean | undefined

/** The version of this program. */
export function ownVersion() {
  const commit = typeof COMMIT === 'string' ? COMMIT : ''
  return {
    version: typeof VERSION === 'string' ? VERSION : 'development',
    /** Null when the executable was not built from a checkout of git. */
    commit: commit === '' ? null : commit,
    /** Whether the sources differed from the commit. */
    modified: typeof MODIFIED === 'boolean' && MODIFIED,
    bun: Bun.version,
    /** Name of the system, such as linux-x64. */
    platform: `${process.platform}-${process.arch}`,
  }
}

/** One line for people. */
export function describeVersion({
  version,
  commit,
  modified,
}: ReturnType<typeof ownVersion>): string {
  if (version === 'development') return 'turnpike development (run from its sources)'
  if (commit === null) return `turnpike ${version} (commit unknown: not built from a git checkout)`
  return `turnpike ${version} (commit ${commit.slice(0, 12)}${modified ? ', modified' : ''})`
}
