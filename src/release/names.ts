/**
 * The names under which a release is published. The names for npm are not registered yet: see "Publish a
 * release" in docs/contributing.md before you change or use them.
 */
export const names = {
  /** The npm package with the command, and the Debian package. */
  package: 'turnpike',
  /** An npm scope belongs to one owner: no stranger can publish a package that ours would load. */
  scope: '@turnpike',
  maintainer: 'The turnpike authors <turnpike@example.com>',
} as const
