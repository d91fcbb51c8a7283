package kvlane

// What tests of planning need: the profile that an engine with the options plans with, and what it is stored under.
var (
	Profile    = (*StreamConfig).profile
	ProfileKey = profileKey
)
